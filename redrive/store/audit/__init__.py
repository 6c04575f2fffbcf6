"""The audit log: written in the transaction of each change, and read."""
