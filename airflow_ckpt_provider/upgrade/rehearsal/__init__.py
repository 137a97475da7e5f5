"""New code on a restored copy of the checkpoint: the copy, what is compared, and the report. Without Spark."""
