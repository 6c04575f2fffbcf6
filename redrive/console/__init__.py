"""The operators' console over HTTP: the API (`api/`) and the pages (`web/`). It is stateless."""
