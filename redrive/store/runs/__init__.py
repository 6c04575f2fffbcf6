"""What lists need to know of runs and their steps."""
