"""The example `growth` on a stack: all of its parts running, and the stories that its plan asks for."""
