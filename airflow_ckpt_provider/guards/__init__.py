"""Will the source still have what the checkpoint promises to read? Pure judging, and one client a file."""
