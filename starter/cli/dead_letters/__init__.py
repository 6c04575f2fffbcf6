"""`redrive dlq …`."""
