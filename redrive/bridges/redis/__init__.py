"""The bridge from a Redis stream."""
