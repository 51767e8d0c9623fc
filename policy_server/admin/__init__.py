"""Models listed, loaded and replaced while the server runs: the service and its client."""
