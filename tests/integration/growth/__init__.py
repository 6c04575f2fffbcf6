"""The example growth, part by part."""
