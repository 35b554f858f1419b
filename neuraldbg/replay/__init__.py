"""Going back: a script is run again with one change, and what came of it is compared."""
