"""When to look, what to send, and how the chunk that comes back is merged into the plan."""
