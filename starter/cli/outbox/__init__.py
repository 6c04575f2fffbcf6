"""The commands of the outbox."""
