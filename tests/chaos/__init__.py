"""Long tests that hurt a stack of their own at random. Not collected by pytest: `make chaos` runs them."""
