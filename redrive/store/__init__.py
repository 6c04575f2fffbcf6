"""Postgres: migrations, and one package of queries per table family. Knows nothing of Temporal."""
