"""Notifiers: what to do when a task fails, said where the failure is read."""
