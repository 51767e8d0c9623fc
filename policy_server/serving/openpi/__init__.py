"""openpi's WebSocket protocol: its clients run unchanged."""
