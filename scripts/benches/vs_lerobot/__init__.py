"""What both sides of the comparison with LeRobot have in common."""
