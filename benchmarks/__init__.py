"""How fast a backup is, beside the tools people use today: ``python -m benchmarks.main``."""
