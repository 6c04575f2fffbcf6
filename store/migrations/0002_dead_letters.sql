-- Runs (what lists and audits need of them), dead letters and the audit log, with row level security by tenant.

CREATE TABLE redrive.runs (
    run_id text PRIMARY KEY,
    tenant text NOT NULL,
    pipeline text NOT NULL,
    status text NOT NULL,
    failed_step text,
    category text,
    correlation_id text,
    idempotency_key text,
    started_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX runs_by_time ON redrive.runs (tenant, started_at DESC, run_id);
CREATE INDEX runs_by_status ON redrive.runs (tenant, status, started_at DESC, run_id);

CREATE TABLE redrive.dead_letters (
    id text PRIMARY KEY,
    tenant text NOT NULL,
    run_id text NOT NULL,
    step text NOT NULL,
    module text NOT NULL,
    pipeline text NOT NULL,
    status text NOT NULL CHECK (status IN ('pending', 'replaying', 'replayed', 'resolved', 'discarded')),
    category text NOT NULL,
    error_type text NOT NULL,
    message text NOT NULL,
    stack text NOT NULL,
    attempts jsonb NOT NULL,
    cycle integer NOT NULL,
    first_failed_at timestamptz NOT NULL,
    last_failed_at timestamptz NOT NULL,
    failure_history jsonb NOT NULL DEFAULT '[]',
    payload jsonb,
    config jsonb NOT NULL,
    correlation_id text NOT NULL,
    idempotency_key text,
    generation text NOT NULL,
    fingerprint text NOT NULL,
    blocked_by text,
    orphaned boolean NOT NULL DEFAULT false,
    replay_count integer NOT NULL DEFAULT 0,
    replayed_by text,
    replayed_at timestamptz,
    replay_mode text,
    replay_reason text,
    resolution text,
    resolved_by text,
    resolved_at timestamptz,
    resolution_reason text,
    version bigint NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant, run_id, step)
);
CREATE INDEX dead_letters_by_time ON redrive.dead_letters (tenant, last_failed_at DESC, id DESC);
CREATE INDEX dead_letters_by_status ON redrive.dead_letters (tenant, status, last_failed_at DESC, id DESC);
CREATE INDEX dead_letters_by_pipeline ON redrive.dead_letters (tenant, pipeline, last_failed_at DESC, id DESC);
CREATE INDEX dead_letters_by_step ON redrive.dead_letters (tenant, step, last_failed_at DESC, id DESC);
CREATE INDEX dead_letters_by_category ON redrive.dead_letters (tenant, category, last_failed_at DESC, id DESC);
CREATE INDEX dead_letters_by_fingerprint ON redrive.dead_letters (tenant, fingerprint, last_failed_at DESC, id DESC);
CREATE INDEX dead_letters_open ON redrive.dead_letters (tenant, first_failed_at)
    WHERE status IN ('pending', 'replaying');

-- How many there are by status: counting a million rows for each page would cost 100 ms.
CREATE TABLE redrive.dead_letter_counts (
    tenant text NOT NULL,
    status text NOT NULL,
    count bigint NOT NULL,
    PRIMARY KEY (tenant, status)
);

CREATE FUNCTION redrive.count_dead_letters() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = redrive AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.status = NEW.status THEN
        RETURN NULL;
    END IF;
    -- In the order of the names, so that two transactions never wait for each other's counter.
    IF TG_OP = 'UPDATE' AND OLD.status < NEW.status THEN
        UPDATE dead_letter_counts SET count = count - 1 WHERE tenant = OLD.tenant AND status = OLD.status;
    END IF;
    INSERT INTO dead_letter_counts AS c (tenant, status, count) VALUES (NEW.tenant, NEW.status, 1)
        ON CONFLICT (tenant, status) DO UPDATE SET count = c.count + 1;
    IF TG_OP = 'UPDATE' AND OLD.status > NEW.status THEN
        UPDATE dead_letter_counts SET count = count - 1 WHERE tenant = OLD.tenant AND status = OLD.status;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER count_dead_letters AFTER INSERT OR UPDATE OF status ON redrive.dead_letters
    FOR EACH ROW EXECUTE FUNCTION redrive.count_dead_letters();

-- Append-only; each row carries the hash of the one before it in its tenant.
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
-- An order and its outcome are written once, however often the activity that writes them is tried.
CREATE UNIQUE INDEX audit_log_once ON redrive.audit_log (tenant, dead_letter, action, request_id)
    WHERE request_id IS NOT NULL;

CREATE TABLE redrive.audit_heads (
    tenant text PRIMARY KEY,
    number bigint NOT NULL,
    hash bytea NOT NULL
);

CREATE FUNCTION redrive.audit_hash(previous bytea, entry redrive.audit_log) RETURNS bytea LANGUAGE sql IMMUTABLE
    SET search_path = redrive AS $$
    SELECT sha256(previous || convert_to(jsonb_build_array(
        entry.tenant, entry.number, extract(epoch FROM entry.at), entry.action, entry.dead_letter, entry.run_id,
        entry.step, entry.actor, entry.reason, entry.request_id, entry.before, entry.after)::text, 'UTF8'))
$$;

CREATE FUNCTION redrive.chain_audit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = redrive AS $$
DECLARE
    head audit_heads;
BEGIN
    INSERT INTO audit_heads (tenant, number, hash) VALUES (NEW.tenant, 0, '\x') ON CONFLICT DO NOTHING;
    SELECT * INTO head FROM audit_heads WHERE tenant = NEW.tenant FOR UPDATE;
    NEW.number := head.number + 1;
    NEW.at := clock_timestamp();
    NEW.hash := audit_hash(head.hash, NEW);
    UPDATE audit_heads SET number = NEW.number, hash = NEW.hash WHERE tenant = NEW.tenant;
    RETURN NEW;
END
$$;
CREATE TRIGGER chain_audit BEFORE INSERT ON redrive.audit_log
    FOR EACH ROW EXECUTE FUNCTION redrive.chain_audit();

-- Failures that look alike since the last alert.
CREATE TABLE redrive.alerts (
    tenant text NOT NULL,
    fingerprint text NOT NULL,
    count bigint NOT NULL,
    sent_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, fingerprint)
);

-- The tenant of a transaction is set by the application; '*' is the system itself and owners of all tenants.
CREATE FUNCTION redrive.sees(tenant text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT tenant = current_setting('redrive.tenant', true) OR current_setting('redrive.tenant', true) = '*'
$$;

ALTER TABLE redrive.runs ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.dead_letters ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.dead_letter_counts ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.audit_log ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.alerts ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.audit_heads ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON redrive.runs USING (redrive.sees(tenant));
CREATE POLICY tenant ON redrive.dead_letters USING (redrive.sees(tenant));
CREATE POLICY tenant ON redrive.dead_letter_counts USING (redrive.sees(tenant));
CREATE POLICY tenant ON redrive.audit_log USING (redrive.sees(tenant));
CREATE POLICY tenant ON redrive.alerts USING (redrive.sees(tenant));
CREATE POLICY tenant ON redrive.audit_heads USING (redrive.sees(tenant));

GRANT SELECT, INSERT, UPDATE ON redrive.runs, redrive.dead_letters, redrive.alerts TO redrive_app;
GRANT SELECT ON redrive.dead_letter_counts, redrive.audit_heads TO redrive_app;
GRANT SELECT, INSERT ON redrive.audit_log TO redrive_app;
GRANT EXECUTE ON FUNCTION redrive.audit_hash, redrive.sees TO redrive_app;
