"""Events from any broker: settings, intake and replay."""
