"""HTTP connections: uvicorn's protocol, with a short way for plain requests."""
