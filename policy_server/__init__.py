"""Asynchronous inference for robots whose policies predict chunks of actions: the accelerator's side."""
