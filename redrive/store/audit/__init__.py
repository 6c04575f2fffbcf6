"""The audit log: written in the transaction that makes a change, and read."""
