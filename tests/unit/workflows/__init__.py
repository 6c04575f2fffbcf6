"""Tests of the pure parts of workflows."""
