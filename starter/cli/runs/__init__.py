"""`redrive run …`."""
