"""The way to the policy server: channel, handshake, stream, reconnect."""
