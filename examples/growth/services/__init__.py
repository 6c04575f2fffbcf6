"""Stand-ins for the four services that a mission calls. They keep all in memory and speak the real HTTP APIs."""
