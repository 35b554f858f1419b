"""Beyond one disk: a trace as a Parquet data set in a folder or an object store, and the way there and back."""
