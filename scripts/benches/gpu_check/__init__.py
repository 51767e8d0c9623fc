"""Whether a GPU gives what the CPU gives, how fast, and how near to what the device could do at most."""
