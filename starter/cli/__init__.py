"""The commands of `redrive`, one file or package for each family."""
