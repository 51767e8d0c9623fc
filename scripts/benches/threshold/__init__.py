"""Rules for `chunk_size_threshold`: simulated round trips by the million, and runs on the virtual arm."""
