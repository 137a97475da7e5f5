"""Triggers: what waits in the triggerer."""
