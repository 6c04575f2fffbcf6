"""Brokers' events: stored, dead, replayed."""
