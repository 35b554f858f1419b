"""Symptoms, one file each: pure functions from the evidence of a run to findings."""
