"""A new checkpoint in the place of the old one."""
