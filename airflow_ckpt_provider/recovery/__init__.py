"""Plans that change a checkpoint and what belongs to it: repair, rewind, reset, upgrade."""
