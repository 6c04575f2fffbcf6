"""Who may come in: tokens, members and sessions."""
