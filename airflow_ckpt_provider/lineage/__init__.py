"""What a task read and wrote, by the names that OpenLineage has for it; pure data, without OpenLineage's client."""
