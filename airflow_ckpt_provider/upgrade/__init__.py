"""An upgrade of a stateful stream: what it has done so far, its fence, and the way back."""
