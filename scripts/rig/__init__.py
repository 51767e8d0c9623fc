"""Stand-ins that tests and benches share: programs, a bad network, robots, bundles, servos and pictures."""
