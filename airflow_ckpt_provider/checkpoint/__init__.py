"""What a checkpoint is: its logs, offsets, state, closure and resume point. Reads only, never writes."""
