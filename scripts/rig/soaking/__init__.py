"""The parts of `soak.py`: what stands around the runtime, what goes wrong, and who judges."""
