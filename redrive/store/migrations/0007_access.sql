-- Who may come in: API tokens, members (people of an identity provider), sessions of the web pages and one-time links.
-- Secrets are kept as SHA-256 hashes. Whoever asks is found by a hash before a tenant is known: by functions of the
-- owner's, so that the application's role can look up the one secret that it was shown, and never read the tables past
-- row level security.

CREATE TABLE redrive.api_tokens (
    id text PRIMARY KEY,
    -- '*' is every tenant, for owners: the application's role, which writes as one tenant, cannot make such a row.
    tenant text NOT NULL,
    name text NOT NULL,
    role text NOT NULL CHECK (role IN ('owner', 'admin', 'staff', 'viewer')),
    rights text[] NOT NULL,
    hash bytea NOT NULL UNIQUE,
    created_by text NOT NULL,
    -- Who answers for what it does: the person who made it, or the token itself when it was made on the command line.
    person text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    revoked_by text,
    revoked_at timestamptz,
    CHECK ((role = 'owner') = (tenant = '*'))
);
CREATE INDEX api_tokens_by_tenant ON redrive.api_tokens (tenant, created_at DESC, id);

-- A person has one place: a role in one tenant, or in all.
CREATE TABLE redrive.members (
    subject text PRIMARY KEY,
    tenant text NOT NULL,
    role text NOT NULL CHECK (role IN ('owner', 'admin', 'staff', 'viewer')),
    rights text[] NOT NULL,
    active boolean NOT NULL DEFAULT true,
    changed_by text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now(),
    CHECK ((role = 'owner') = (tenant = '*'))
);
CREATE INDEX members_by_tenant ON redrive.members (tenant, subject);

-- A browser that has signed in as a token or a member ('session'), or may do so once ('link').
CREATE TABLE redrive.sessions (
    hash bytea PRIMARY KEY,
    kind text NOT NULL CHECK (kind IN ('session', 'link')),
    token_id text REFERENCES redrive.api_tokens ON DELETE CASCADE,
    subject text REFERENCES redrive.members ON DELETE CASCADE,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL,
    CHECK ((token_id IS NULL) <> (subject IS NULL))
);
CREATE INDEX sessions_by_expiry ON redrive.sessions (expires_at);

CREATE FUNCTION redrive.token_by_hash(
    secret bytea, OUT id text, OUT tenant text, OUT name text, OUT role text, OUT rights text[], OUT person text
) RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT token.id, token.tenant, token.name, token.role, token.rights, token.person FROM redrive.api_tokens AS token
    WHERE token.hash = secret AND token.revoked_at IS NULL AND token.expires_at > now()
$$;

CREATE FUNCTION redrive.active_member(
    who text, OUT id text, OUT tenant text, OUT name text, OUT role text, OUT rights text[], OUT person text
) RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT member.subject, member.tenant, member.subject, member.role, member.rights, 'member:' || member.subject
    FROM redrive.members AS member WHERE member.subject = who AND member.active
$$;

-- A session is worth what its token or member is worth now: a revoked token ends its sessions.
CREATE FUNCTION redrive.session_by_hash(
    secret bytea,
    OUT is_token boolean, OUT id text, OUT tenant text, OUT name text, OUT role text, OUT rights text[], OUT person text
) RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT true, token.id, token.tenant, token.name, token.role, token.rights, token.person
    FROM redrive.sessions AS session JOIN redrive.api_tokens AS token ON token.id = session.token_id
    WHERE session.hash = secret AND session.kind = 'session' AND session.expires_at > now()
        AND token.revoked_at IS NULL AND token.expires_at > now()
    UNION ALL
    SELECT false, member.subject, member.tenant, member.subject, member.role, member.rights, 'member:' || member.subject
    FROM redrive.sessions AS session JOIN redrive.members AS member ON member.subject = session.subject
    WHERE session.hash = secret AND session.kind = 'session' AND session.expires_at > now() AND member.active
$$;

-- Open a session for whoever holds a token, a member that the identity provider vouched for, or an unused link.
CREATE FUNCTION redrive.open_token_session(token_secret bytea, secret bytea, lasts interval) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM redrive.sessions WHERE expires_at < now();
    INSERT INTO redrive.sessions (hash, kind, token_id, expires_at)
        SELECT secret, 'session', token.id, now() + lasts FROM redrive.token_by_hash(token_secret) AS token;
    RETURN FOUND;
END
$$;

CREATE FUNCTION redrive.open_member_session(who text, secret bytea, lasts interval) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM redrive.sessions WHERE expires_at < now();
    INSERT INTO redrive.sessions (hash, kind, subject, expires_at)
        SELECT secret, 'session', member.id, now() + lasts FROM redrive.active_member(who) AS member;
    RETURN FOUND;
END
$$;

CREATE FUNCTION redrive.open_link_session(link bytea, secret bytea, lasts interval) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Two that come with one link wait for each other here, and the second finds it gone.
    INSERT INTO redrive.sessions (hash, kind, token_id, expires_at)
        SELECT secret, 'session', used.token_id, now() + lasts
        FROM redrive.take_link(link) AS used (token_id) WHERE used.token_id IS NOT NULL;
    RETURN FOUND;
END
$$;

CREATE FUNCTION redrive.take_link(link bytea) RETURNS text LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    taken redrive.sessions;
BEGIN
    DELETE FROM redrive.sessions WHERE hash = link AND kind = 'link' RETURNING * INTO taken;
    RETURN CASE WHEN taken.expires_at > now() THEN taken.token_id END;
END
$$;

CREATE FUNCTION redrive.put_link(token_secret bytea, link bytea, lasts interval) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO redrive.sessions (hash, kind, token_id, expires_at)
        SELECT link, 'link', token.id, now() + lasts FROM redrive.token_by_hash(token_secret) AS token;
    RETURN FOUND;
END
$$;

CREATE FUNCTION redrive.close_session(secret bytea) RETURNS void LANGUAGE sql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM redrive.sessions WHERE hash = secret
$$;

-- Whoever lets somebody in or puts them out leaves a line in the tenant's audit log ('*' has one of its own).
CREATE FUNCTION redrive.audit_access() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_TABLE_NAME = 'api_tokens' THEN
        INSERT INTO redrive.audit_log (tenant, action, actor, after)
        VALUES (NEW.tenant, CASE WHEN TG_OP = 'INSERT' THEN 'token_created' ELSE 'token_revoked' END,
                coalesce(NEW.revoked_by, NEW.created_by),
                jsonb_build_object('token', NEW.id, 'name', NEW.name, 'role', NEW.role, 'rights', NEW.rights,
                                   'expires_at', NEW.expires_at));
    ELSE
        INSERT INTO redrive.audit_log (tenant, action, actor, after)
        VALUES (NEW.tenant, 'member_changed', NEW.changed_by,
                jsonb_build_object('member', NEW.subject, 'role', NEW.role, 'rights', NEW.rights,
                                   'active', NEW.active));
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER audit_access AFTER INSERT OR UPDATE ON redrive.api_tokens
    FOR EACH ROW EXECUTE FUNCTION redrive.audit_access();
CREATE TRIGGER audit_access AFTER INSERT OR UPDATE ON redrive.members
    FOR EACH ROW EXECUTE FUNCTION redrive.audit_access();

-- Edits that wait for another pair of eyes: one row for each plan, by its hash, good for an hour.
CREATE TABLE redrive.approvals (
    tenant text NOT NULL,
    plan_hash text NOT NULL,
    dead_letter text NOT NULL,
    -- What would be done, redacted: enough for whoever approves it.
    plan jsonb NOT NULL,
    reason text NOT NULL,
    requested_by text NOT NULL,
    -- Who answers for the request: a token that somebody made counts as them.
    requested_person text NOT NULL,
    requested_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL DEFAULT now() + interval '1 hour',
    approved_by text,
    approved_at timestamptz,
    -- The order that the approval was used for: the same order again may use it again.
    used_for text,
    PRIMARY KEY (tenant, plan_hash)
);
CREATE INDEX approvals_by_time ON redrive.approvals (tenant, requested_at DESC);

-- For the newest lines of all tenants.
CREATE INDEX audit_log_by_time ON redrive.audit_log (at DESC, tenant DESC, number DESC);

ALTER TABLE redrive.approvals ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON redrive.approvals USING (redrive.sees(tenant)) WITH CHECK (redrive.is_own(tenant));
GRANT SELECT, INSERT, UPDATE ON redrive.approvals TO redrive_app;

ALTER TABLE redrive.api_tokens ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.members ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.sessions ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON redrive.api_tokens USING (redrive.sees(tenant)) WITH CHECK (redrive.is_own(tenant));
CREATE POLICY tenant ON redrive.members USING (redrive.sees(tenant)) WITH CHECK (false);

-- Hashes are not for reading, and what a token may do is never changed: a new one is made.
GRANT SELECT (id, tenant, name, role, rights, created_by, created_at, expires_at, revoked_by, revoked_at)
    ON redrive.api_tokens TO redrive_app;
GRANT INSERT (id, tenant, name, role, rights, hash, created_by, person, expires_at) ON redrive.api_tokens TO redrive_app;
GRANT UPDATE (revoked_by, revoked_at) ON redrive.api_tokens TO redrive_app;
GRANT SELECT ON redrive.members TO redrive_app;
REVOKE ALL ON FUNCTION redrive.token_by_hash, redrive.active_member, redrive.session_by_hash,
    redrive.open_token_session, redrive.open_member_session, redrive.open_link_session, redrive.take_link,
    redrive.put_link, redrive.close_session, redrive.audit_access FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redrive.token_by_hash, redrive.active_member, redrive.session_by_hash,
    redrive.open_token_session, redrive.open_member_session, redrive.open_link_session, redrive.put_link,
    redrive.close_session TO redrive_app;
