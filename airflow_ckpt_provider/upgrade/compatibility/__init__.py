"""Can the new code go on from this checkpoint? What Spark allows, ignores, refuses, and does not notice."""
