"""The workflows: deterministic code only. No I/O, clock, random or ids but Temporal's own."""
