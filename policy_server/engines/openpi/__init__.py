"""openpi's protocol for policies behind a WebSocket: its messages, where they hold what, and the engine that asks."""
