"""Programs for developers, run from the repository: `python -m scripts.bench`, `soak`, `fuzz`, `profile_latency`."""
