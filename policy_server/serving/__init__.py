"""Sessions, observations and the scheduler: from a robot's observation to its chunk."""
