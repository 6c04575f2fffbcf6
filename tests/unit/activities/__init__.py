"""Tests of the parts of activities that need no server."""
