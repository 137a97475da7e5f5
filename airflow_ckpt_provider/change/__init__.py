"""The one engine that changes a checkpoint."""
