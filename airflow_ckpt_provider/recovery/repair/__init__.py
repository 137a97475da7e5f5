"""From what the doctor found to the smallest change that helps."""
