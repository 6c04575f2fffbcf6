"""Redaction: removes secrets from texts and documents before they are stored, logged, shown or sent. Pure."""
