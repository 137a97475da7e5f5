"""The parts of the task group ``safe_upgrade``."""
