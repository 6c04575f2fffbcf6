"""Dead letters: their rows, their changes, operators' commands, lists and figures."""
