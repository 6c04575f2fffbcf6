"""The programs that run beside each other: the worker, the console and the bridges. None imports another."""
