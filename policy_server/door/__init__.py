"""Who may come in, over which address, and how much of the server one peer may use."""
