"""Root causes by group: each a pure function from the evidence of a run to findings."""
