"""Events, whatever broker they come from: settings, intake and replay."""
