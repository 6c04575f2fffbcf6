"""Ways in from brokers: a message is acknowledged when it is safe, and not before."""
