"""Tests of the connectors, against servers that answer as the vendors document."""
