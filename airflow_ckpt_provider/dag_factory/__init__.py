"""DAGs made from the declaration of streams."""
