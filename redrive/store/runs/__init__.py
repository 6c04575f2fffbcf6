"""What lists need of runs and their steps."""
