"""Experiments on a copy of what was trained, once the script is over: what decides a cause that no single run shows."""
