"""The documentation as a site, and its screenshots. A tool of this repository: nothing of it is installed."""
