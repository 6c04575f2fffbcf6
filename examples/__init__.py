"""Pipelines to read first and to copy from. Importing this package registers all of them."""

from examples import hello, orders

__all__ = ["hello", "orders"]
