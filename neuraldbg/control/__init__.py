"""Stopping: breakpoints, their conditions, and the gate that holds the training thread."""
