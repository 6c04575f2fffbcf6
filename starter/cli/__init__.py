"""The words of the `redrive` command, one file for each family."""
