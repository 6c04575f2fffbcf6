-- The role that lets people in: it looks secrets up, opens sessions, and makes and revokes tokens. Only the console, and
-- the commands that manage access, log in with it. It sees no run, no payload and no audit log.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'redrive_console') THEN
        CREATE ROLE redrive_console NOLOGIN;
    END IF;
EXCEPTION
    -- Roles belong to the whole cluster: another database may be doing this now.
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'an administrator must run: CREATE ROLE redrive_console NOLOGIN; GRANT redrive_console TO %',
            quote_ident(CURRENT_USER) USING ERRCODE = 'insufficient_privilege';
END
$$;

DO $$
BEGIN
    GRANT redrive_console TO CURRENT_USER;
EXCEPTION
    WHEN unique_violation THEN NULL;
    -- Made by somebody else, who need not have granted it to us: the owner of the tables can do without.
    WHEN insufficient_privilege THEN NULL;
END
$$;

GRANT USAGE ON SCHEMA redrive TO redrive_console;
-- The policies ask them.
GRANT EXECUTE ON FUNCTION redrive.sees, redrive.is_own TO redrive_console;
GRANT SELECT ON redrive.members TO redrive_console;
GRANT EXECUTE ON FUNCTION redrive.token_by_hash, redrive.active_member, redrive.session_by_hash,
    redrive.open_token_session, redrive.open_member_session, redrive.open_link_session, redrive.put_link,
    redrive.close_session TO redrive_console;

-- The columns of tokens that the application's role has had so far, hashes not for reading among them.
DO $$
DECLARE
    allowed record;
BEGIN
    FOR allowed IN
        SELECT privilege_type, string_agg(quote_ident(column_name), ', ') AS columns
        FROM information_schema.column_privileges
        WHERE (table_schema, table_name, grantee) = ('redrive', 'api_tokens', 'redrive_app') GROUP BY privilege_type
    LOOP
        EXECUTE format('GRANT %s (%s) ON redrive.api_tokens TO redrive_console', allowed.privilege_type, allowed.columns);
    END LOOP;
END
$$;

-- What tokens made with tokens, and signatures of consoles, need, where a migration before this one has made it.
DO $$
BEGIN
    IF to_regprocedure('redrive.hold_token(text)') IS NOT NULL THEN
        GRANT EXECUTE ON FUNCTION redrive.hold_token(text) TO redrive_console;
    END IF;
    IF to_regclass('redrive.console_keys') IS NOT NULL THEN
        GRANT SELECT ON redrive.console_keys TO redrive_console;
    END IF;
END
$$;
