"""The dashboard's import paths in the original project."""
