"""AsyncBench: ways of merging action chunks, in closed loop on the virtual arm, under latencies that vary."""
