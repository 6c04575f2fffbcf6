"""Same key, same run: starts with a key, and the claims that remember it."""
