"""Pipelines to read first and to copy from. Importing this package registers all of them."""

from redrive.examples import hello, orders

__all__ = ["hello", "orders"]
