"""Where the first NaN or Inf of a run was born: operation, layer, source line, and what went into it."""
