"""`redrive events …`."""
