"""Side effects only: what workflows ask for by name."""
