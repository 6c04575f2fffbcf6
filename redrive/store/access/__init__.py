"""Access: tokens, members and sessions."""
