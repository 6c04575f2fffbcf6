"""Pipelines that call services by their connectors, on a real Temporal and PostgreSQL."""
