"""What the experiments share: servers to start, a simulated server, how figures become JSON and JSON a page."""
