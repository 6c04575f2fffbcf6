"""Bulk operations: opened, controlled, listed, and their items."""
