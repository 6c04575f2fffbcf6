"""PostgreSQL as every process uses it: connections, transactions of one tenant, pages of a list. Knows no table."""
