-- What a tenant uses of what it may use, counted for all consoles. Nothing here is worth a write to the disk: after a crash
-- of the server the tables are empty, and each tenant begins with what it may use.

-- Token buckets: each fills at its rate, and holds one second of it.
CREATE UNLOGGED TABLE redrive.tenant_tokens (
    tenant text NOT NULL,
    kind text NOT NULL,
    tokens double precision NOT NULL,
    at timestamptz NOT NULL,
    PRIMARY KEY (tenant, kind)
);

-- Live streams. One whose console died is not counted for long.
CREATE UNLOGGED TABLE redrive.tenant_streams (
    tenant text NOT NULL,
    id uuid NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, id)
);

ALTER TABLE redrive.tenant_tokens ENABLE ROW LEVEL SECURITY;
CREATE POLICY reading ON redrive.tenant_tokens FOR SELECT USING (redrive.sees(tenant));
CREATE POLICY adding ON redrive.tenant_tokens FOR INSERT WITH CHECK (redrive.is_own(tenant));
CREATE POLICY changing ON redrive.tenant_tokens FOR UPDATE USING (redrive.sees(tenant)) WITH CHECK (redrive.is_own(tenant));
GRANT SELECT, INSERT, UPDATE ON redrive.tenant_tokens TO redrive_app;
ALTER TABLE redrive.tenant_streams ENABLE ROW LEVEL SECURITY;
CREATE POLICY reading ON redrive.tenant_streams FOR SELECT USING (redrive.sees(tenant));
CREATE POLICY adding ON redrive.tenant_streams FOR INSERT WITH CHECK (redrive.is_own(tenant));
CREATE POLICY changing ON redrive.tenant_streams FOR UPDATE USING (redrive.sees(tenant)) WITH CHECK (redrive.is_own(tenant));
CREATE POLICY removing ON redrive.tenant_streams FOR DELETE USING (redrive.is_own(tenant));
GRANT SELECT, INSERT, UPDATE, DELETE ON redrive.tenant_streams TO redrive_app;

-- Take as many tokens as are wanted, or as there are.
CREATE FUNCTION redrive.take_tokens(whose text, what text, rate double precision, wanted integer) RETURNS integer
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    size double precision := greatest(1, rate);
    ready double precision;
    granted integer;
BEGIN
    PERFORM set_config('redrive.tenant', whose, true);
    INSERT INTO redrive.tenant_tokens (tenant, kind, tokens, at) VALUES (whose, what, size, clock_timestamp())
    ON CONFLICT (tenant, kind) DO NOTHING;
    SELECT least(size, tokens + rate * greatest(0, extract(epoch FROM clock_timestamp() - at))) INTO ready
    FROM redrive.tenant_tokens WHERE tenant = whose AND kind = what FOR UPDATE;
    granted := least(wanted, floor(ready));
    UPDATE redrive.tenant_tokens SET tokens = ready - granted, at = clock_timestamp()
    WHERE tenant = whose AND kind = what;
    RETURN granted;
END
$$;

-- Open a stream, or keep it; false when the tenant has as many others as it may have.
CREATE FUNCTION redrive.hold_stream(whose text, stream uuid, most integer, lasts interval) RETURNS boolean
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('redrive.tenant', whose, true),
        pg_advisory_xact_lock(hashtextextended('streams of ' || whose, 0));
    DELETE FROM redrive.tenant_streams WHERE tenant = whose AND expires_at < now();
    IF (SELECT count(*) FROM redrive.tenant_streams WHERE tenant = whose AND id <> stream) >= most THEN
        RETURN false;
    END IF;
    INSERT INTO redrive.tenant_streams (tenant, id, expires_at) VALUES (whose, stream, now() + lasts)
    ON CONFLICT (tenant, id) DO UPDATE SET expires_at = excluded.expires_at;
    RETURN true;
END
$$;

REVOKE ALL ON FUNCTION redrive.take_tokens, redrive.hold_stream FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redrive.take_tokens, redrive.hold_stream TO redrive_app;
