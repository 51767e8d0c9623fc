"""Asynchronous inference for robots whose policies predict chunks of actions: the robot's side."""
