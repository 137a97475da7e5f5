"""The declaration of streams: one model for Python and for ``streams.yaml``."""
