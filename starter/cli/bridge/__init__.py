"""`redrive bridge …`."""
