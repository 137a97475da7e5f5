"""Many streams at once: which checkpoints there are, and the status of each."""
