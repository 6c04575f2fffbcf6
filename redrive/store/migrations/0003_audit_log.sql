-- The audit log: append-only, each row hashed with the one before it in its tenant.

CREATE TABLE redrive.audit_log (
    tenant text NOT NULL,
    number bigint NOT NULL,
    at timestamptz NOT NULL,
    action text NOT NULL,
    dead_letter text,
    run_id text,
    step text,
    actor text NOT NULL,
    reason text,
    request_id text,
    before jsonb,
    after jsonb,
    hash bytea NOT NULL,
    PRIMARY KEY (tenant, number)
);
CREATE INDEX audit_log_by_dead_letter ON redrive.audit_log (tenant, dead_letter, number);
-- An order has one answer, however often and wherever the activity that gives it is tried.
CREATE UNIQUE INDEX audit_log_answers ON redrive.audit_log (tenant, dead_letter, request_id)
    WHERE action IN ('replay_requested', 'resolved', 'discarded', 'restarted', 'refused');

-- The last row of each tenant's chain: a log that lost its end does not fit it.
CREATE TABLE redrive.audit_heads (
    tenant text PRIMARY KEY,
    number bigint NOT NULL,
    hash bytea NOT NULL
);

CREATE FUNCTION redrive.audit_hash(previous bytea, entry redrive.audit_log) RETURNS bytea LANGUAGE sql IMMUTABLE
    PARALLEL SAFE
    RETURN sha256(previous || convert_to(jsonb_build_array(
        entry.tenant, entry.number, extract(epoch FROM entry.at), entry.action, entry.dead_letter, entry.run_id,
        entry.step, entry.actor, entry.reason, entry.request_id, entry.before, entry.after)::text, 'UTF8'));

-- Whatever number, time and hash an insert supplies is replaced. The lock on the head makes the rows of a tenant one
-- after another; a rollback gives the number back, so there are no gaps.
CREATE FUNCTION redrive.chain_audit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    head redrive.audit_heads;
BEGIN
    INSERT INTO redrive.audit_heads (tenant, number, hash) VALUES (NEW.tenant, 0, '\x') ON CONFLICT DO NOTHING;
    SELECT * INTO STRICT head FROM redrive.audit_heads WHERE tenant = NEW.tenant FOR UPDATE;
    NEW.number := head.number + 1;
    NEW.at := clock_timestamp();
    NEW.hash := redrive.audit_hash(head.hash, NEW);
    UPDATE redrive.audit_heads SET number = NEW.number, hash = NEW.hash WHERE tenant = NEW.tenant;
    RETURN NEW;
END
$$;
REVOKE ALL ON FUNCTION redrive.audit_hash, redrive.chain_audit FROM PUBLIC;
CREATE TRIGGER chain_audit BEFORE INSERT ON redrive.audit_log
    FOR EACH ROW EXECUTE FUNCTION redrive.chain_audit();

ALTER TABLE redrive.audit_log ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.audit_heads ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON redrive.audit_log USING (redrive.sees(tenant)) WITH CHECK (redrive.is_own(tenant));
CREATE POLICY tenant ON redrive.audit_heads USING (redrive.sees(tenant)) WITH CHECK (false);
GRANT SELECT, INSERT ON redrive.audit_log TO redrive_app;
GRANT SELECT ON redrive.audit_heads TO redrive_app;
GRANT EXECUTE ON FUNCTION redrive.audit_hash TO redrive_app;
