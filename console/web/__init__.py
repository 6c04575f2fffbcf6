"""The operators' pages: they read the records and draw them; what they change goes through the API, which decides."""
