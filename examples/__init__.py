"""Pipelines to read first and to copy from. Importing this package registers all of them."""

from redrive.examples import feedback, health, hello, orders, plans, workspace

__all__ = ["feedback", "health", "hello", "orders", "plans", "workspace"]
