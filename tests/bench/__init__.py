"""What Redrive costs: the same work, once as modules and once as a plain Temporal workflow."""
