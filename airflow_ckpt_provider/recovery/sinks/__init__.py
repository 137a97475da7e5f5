"""What a sink will do with a replay, and how it is rolled back."""
