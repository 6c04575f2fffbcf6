"""Stored histories of runs: what workflow code of today has to be able to replay."""
