"""The demo: example pipelines against a service that fails in every possible way."""
