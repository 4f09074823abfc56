"""Code that all experiments share: servers, a simulated server, and how figures become JSON and JSON a page."""
