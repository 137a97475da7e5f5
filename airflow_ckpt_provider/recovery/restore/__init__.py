"""A backup becomes a checkpoint again."""
