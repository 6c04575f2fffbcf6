"""The HTTP API, `/api/v1`: one file for each family of routes."""
