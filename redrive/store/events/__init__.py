"""Events of brokers: stored, dead, replayed."""
