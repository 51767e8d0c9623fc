"""LeRobot's asynchronous clients, served on their own wire without unpickling anything."""
