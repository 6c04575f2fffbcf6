-- Workers, bridges and the console's ordinary queries work as redrive_app, and need nothing of this. With it, whoever got
-- a statement of theirs in could have opened a session for any member, or have made a token for any tenant.

REVOKE ALL ON redrive.api_tokens, redrive.members, redrive.sessions FROM redrive_app;
REVOKE ALL ON FUNCTION redrive.token_by_hash, redrive.active_member, redrive.session_by_hash,
    redrive.open_token_session, redrive.open_member_session, redrive.open_link_session, redrive.put_link,
    redrive.close_session FROM redrive_app;
