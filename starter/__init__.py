"""The client side: the `redrive` command, the embedded stack and the demo."""
