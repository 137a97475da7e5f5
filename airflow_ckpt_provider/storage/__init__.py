"""Storage: one narrow interface over fsspec, with its differences declared as properties."""
