"""The activities: side effects, which workflows call by name."""
