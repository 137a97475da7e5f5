"""What a sink remembers of a query, and how it is rolled back."""
