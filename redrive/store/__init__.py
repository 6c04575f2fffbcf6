"""Postgres: connections, migrations, and one module of queries per table family. Knows nothing of Temporal."""
