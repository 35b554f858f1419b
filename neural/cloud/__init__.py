"""Debugging where there is no screen: on a machine in the cloud, seen through a tunnel."""
