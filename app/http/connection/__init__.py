"""HTTP connections: uvicorn's protocol, with a fast path for plain requests."""
