"""Many streams at once: which checkpoints there are, and how each of them stands."""
