"""The four scenarios of MLPerf's LoadGen against a server."""
