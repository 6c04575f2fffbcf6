-- Workers, bridges and the console's ordinary queries work as redrive_app, and need nothing of this. With it, whoever got
-- a statement of theirs in could have opened a session for any member, or have made a token for any tenant.

REVOKE ALL ON redrive.api_tokens, redrive.members, redrive.sessions FROM redrive_app;
REVOKE ALL ON FUNCTION redrive.token_by_hash, redrive.active_member, redrive.session_by_hash,
    redrive.open_token_session, redrive.open_member_session, redrive.open_link_session, redrive.put_link,
    redrive.close_session FROM redrive_app;

DO $$
BEGIN
    IF to_regprocedure('redrive.hold_token(text)') IS NOT NULL THEN
        REVOKE ALL ON FUNCTION redrive.hold_token(text) FROM redrive_app;
    END IF;
    -- Whoever has the key can sign a sign-in.
    IF to_regclass('redrive.console_keys') IS NOT NULL THEN
        REVOKE ALL ON redrive.console_keys FROM redrive_app;
    END IF;
END
$$;
