"""Dead letters: their rows, every change of one, operators' commands, lists and figures."""
