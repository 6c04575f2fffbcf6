-- Which token another one was made with, and with which one it was revoked: to revoke a token is to revoke what was made with
-- it, and with those. What the command line or a member makes has no such token.
ALTER TABLE redrive.api_tokens
    ADD COLUMN made_with text REFERENCES redrive.api_tokens,
    ADD COLUMN revoked_with text;
CREATE INDEX api_tokens_by_maker ON redrive.api_tokens (made_with) WHERE made_with IS NOT NULL;

-- Those that are there say it in `created_by`, where the name of a token ends with its id. That is nobody's order: it has no
-- line in the audit log.
ALTER TABLE redrive.api_tokens DISABLE TRIGGER audit_access;
UPDATE redrive.api_tokens AS token SET made_with = maker.id
FROM redrive.api_tokens AS maker WHERE maker.id = substring(token.created_by FROM '\((tok_[0-9a-f]+)\)$');
ALTER TABLE redrive.api_tokens ENABLE TRIGGER audit_access;

-- Keep a token from being revoked until the one that is made with it is there to be revoked as well. False: it is not good
-- any more. Of the owner's: an owner's token makes those of every tenant.
CREATE FUNCTION redrive.hold_token(which text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM 1 FROM redrive.api_tokens AS token
    WHERE token.id = which AND token.revoked_at IS NULL AND token.expires_at > now() FOR SHARE;
    RETURN FOUND;
END
$$;

CREATE OR REPLACE FUNCTION redrive.audit_access() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TABLE_NAME = 'api_tokens' THEN
        INSERT INTO redrive.audit_log (tenant, action, actor, after)
        VALUES (NEW.tenant, CASE WHEN TG_OP = 'INSERT' THEN 'token_created' ELSE 'token_revoked' END,
                coalesce(NEW.revoked_by, NEW.created_by),
                jsonb_strip_nulls(jsonb_build_object(
                    'token', NEW.id, 'name', NEW.name, 'role', NEW.role, 'rights', NEW.rights,
                    'expires_at', NEW.expires_at, 'made_with', NEW.made_with, 'revoked_with', NEW.revoked_with)));
    ELSE
        INSERT INTO redrive.audit_log (tenant, action, actor, after)
        VALUES (NEW.tenant, 'member_changed', NEW.changed_by,
                jsonb_build_object('member', NEW.subject, 'role', NEW.role, 'rights', NEW.rights,
                                   'active', NEW.active));
    END IF;
    RETURN NULL;
END
$$;

GRANT SELECT (made_with, revoked_with), INSERT (made_with), UPDATE (revoked_with) ON redrive.api_tokens TO redrive_app;
REVOKE ALL ON FUNCTION redrive.hold_token FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redrive.hold_token TO redrive_app;

-- What the consoles of a deployment sign with: cursors, and sign-ins that are under way at the identity provider.
CREATE TABLE redrive.console_keys (
    name text PRIMARY KEY,
    secret bytea NOT NULL CHECK (length(secret) >= 32)
);
INSERT INTO redrive.console_keys (name, secret)
VALUES ('signing', sha256(convert_to(gen_random_uuid()::text || gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8')));
ALTER TABLE redrive.console_keys ENABLE ROW LEVEL SECURITY;
CREATE POLICY everybody ON redrive.console_keys FOR SELECT USING (true);
GRANT SELECT ON redrive.console_keys TO redrive_app;
