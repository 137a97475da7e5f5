"""Can the new code continue from this checkpoint? What Spark allows, ignores, refuses, and does not notice."""
