"""The operators' way in over HTTP: the API (`api/`) and the pages (`web/`). It keeps no state."""
