"""Real servers of services that connectors call, and tests against them: `make real-services`."""
