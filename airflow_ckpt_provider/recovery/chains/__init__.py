"""Several streams in one plan: those that read each other's tables, and the queries of one application."""
