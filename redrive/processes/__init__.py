"""The programs: the worker, the console and the bridges. None imports another."""
