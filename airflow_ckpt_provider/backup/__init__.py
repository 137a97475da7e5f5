"""Backups of checkpoints: a repository, and the verbs create, verify, restore, seal."""
