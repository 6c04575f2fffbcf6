"""`redrive bulk …`."""
