"""Models of `.neural` files: written as code a person would keep, and that code made to run."""
