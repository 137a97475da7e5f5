"""Back to a batch or a time, with state and sink."""
