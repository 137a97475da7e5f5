"""Where a new checkpoint has to start so that nothing is lost: reader options for every source of a query."""
