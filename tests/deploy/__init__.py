"""What is in deploy/, held against the code: settings, routes, metrics, the image."""
