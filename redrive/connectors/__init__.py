"""Typed clients of services that many teams call. Each is a thin layer on `ServiceClient`; none needs an extra."""
