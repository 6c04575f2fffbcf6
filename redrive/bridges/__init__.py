"""Bridges from brokers: a message is acknowledged once it is stored, and not before."""
