"""The bridge from an outbox: rows of a table become runs, and follow their fates."""
