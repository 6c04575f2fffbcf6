"""Same key, same run: starts with a key, and the claims that store it."""
