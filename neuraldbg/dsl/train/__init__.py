"""Training a `.neural` file: its data, its loop, its search."""
