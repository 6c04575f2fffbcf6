"""Deterministic code only: what a run does, step by step. No I/O, clock, random or ids but Temporal's own."""
