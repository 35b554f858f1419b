"""Many processes, one run: who starts them, how they find the run, how each of them takes part."""
