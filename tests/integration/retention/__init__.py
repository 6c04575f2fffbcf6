"""What is done at set times about what grows."""
