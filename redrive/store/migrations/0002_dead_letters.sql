-- Runs (what lists need of them), dead letters, their counters and alerts, with row level security by tenant.

-- A transaction names its tenant in the setting redrive.tenant. '*' reads the rows of all tenants and writes none; no
-- setting, or an empty one, sees nothing.
CREATE FUNCTION redrive.sees(tenant text) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE
    RETURN current_setting('redrive.tenant', true) IN (tenant, '*');
CREATE FUNCTION redrive.is_own(tenant text) RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE
    RETURN current_setting('redrive.tenant', true) = tenant AND tenant NOT IN ('', '*');
REVOKE ALL ON FUNCTION redrive.sees, redrive.is_own FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redrive.sees, redrive.is_own TO redrive_app;

CREATE TABLE redrive.runs (
    run_id text PRIMARY KEY,
    tenant text NOT NULL,
    pipeline text NOT NULL,
    status text NOT NULL,
    failed_step text,
    failed_cycle integer,
    category text,
    correlation_id text,
    idempotency_key text,
    started_at timestamptz NOT NULL,
    closed_at timestamptz,
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX runs_by_time ON redrive.runs (tenant, started_at DESC, run_id DESC);
CREATE INDEX runs_by_status ON redrive.runs (tenant, status, started_at DESC, run_id DESC);
CREATE INDEX runs_by_pipeline ON redrive.runs (tenant, pipeline, started_at DESC, run_id DESC);
CREATE INDEX runs_all ON redrive.runs (started_at DESC, run_id DESC);

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
    -- How many failures the alert of this cycle speaks of; 0 when another alert speaks of it.
    alert_count integer NOT NULL DEFAULT 0,
    blocked_by text,
    orphaned boolean NOT NULL DEFAULT false,
    replay_count integer NOT NULL DEFAULT 0,
    -- The last order that was accepted, until the step is exhausted again: a late word about an older one is ignored.
    order_request_id text,
    replayed_by text,
    replayed_at timestamptz,
    replay_mode text,
    replay_reason text,
    resolution text,
    resolved_by text,
    resolved_at timestamptz,
    resolution_reason text,
    version bigint NOT NULL DEFAULT 1 CHECK (version > 0),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant, run_id, step)
);
-- One for each filter of the lists, newest first.
CREATE INDEX dead_letters_by_time ON redrive.dead_letters (tenant, last_failed_at DESC, id DESC);
CREATE INDEX dead_letters_by_status ON redrive.dead_letters (tenant, status, last_failed_at DESC, id DESC);
CREATE INDEX dead_letters_by_pipeline ON redrive.dead_letters (tenant, pipeline, last_failed_at DESC, id DESC);
CREATE INDEX dead_letters_by_module ON redrive.dead_letters (tenant, module, last_failed_at DESC, id DESC);
CREATE INDEX dead_letters_by_step ON redrive.dead_letters (tenant, step, last_failed_at DESC, id DESC);
CREATE INDEX dead_letters_by_category ON redrive.dead_letters (tenant, category, last_failed_at DESC, id DESC);
CREATE INDEX dead_letters_by_fingerprint ON redrive.dead_letters (tenant, fingerprint, last_failed_at DESC, id DESC);
-- For the search by an id.
CREATE INDEX dead_letters_by_correlation ON redrive.dead_letters (tenant, correlation_id);
CREATE INDEX dead_letters_by_key ON redrive.dead_letters (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL;
-- For what is open in a tenant: the newest with what groups are made of, the oldest, and all by id.
CREATE INDEX dead_letters_open ON redrive.dead_letters (tenant, last_failed_at DESC, id DESC)
    INCLUDE (fingerprint, category, step, first_failed_at) WHERE status IN ('pending', 'replaying');
CREATE INDEX dead_letters_open_by_age ON redrive.dead_letters (tenant, first_failed_at)
    WHERE status IN ('pending', 'replaying');
CREATE INDEX dead_letters_open_by_id ON redrive.dead_letters (tenant, id) WHERE status IN ('pending', 'replaying');
-- The same in all tenants. Every version is above 0: only a query that says so can use these. Without that, the list of
-- a tenant whose letters are old could be read from here, past the letters of all others.
CREATE INDEX dead_letters_all ON redrive.dead_letters (last_failed_at DESC, id DESC) WHERE version > 0;
CREATE INDEX dead_letters_all_open ON redrive.dead_letters (last_failed_at DESC, id DESC)
    INCLUDE (tenant, fingerprint, category, step, first_failed_at)
    WHERE status IN ('pending', 'replaying') AND version > 0;
CREATE INDEX dead_letters_all_open_by_age ON redrive.dead_letters (first_failed_at)
    WHERE status IN ('pending', 'replaying') AND version > 0;
CREATE INDEX dead_letters_all_open_by_id ON redrive.dead_letters (id)
    WHERE status IN ('pending', 'replaying') AND version > 0;

-- How many there are by status: counting a million rows for each page would cost 100 ms.
CREATE TABLE redrive.dead_letter_counts (
    tenant text NOT NULL,
    status text NOT NULL,
    count bigint NOT NULL,
    PRIMARY KEY (tenant, status)
);

-- Names are written out and pg_temp is not searched first: a caller's temporary tables must not take the place of ours.
CREATE FUNCTION redrive.count_dead_letters() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND (OLD.tenant, OLD.status) = (NEW.tenant, NEW.status) THEN
        RETURN NULL;
    END IF;
    -- In the order of the names, so that two transactions never wait for each other's counter.
    INSERT INTO redrive.dead_letter_counts AS known (tenant, status, count)
        SELECT * FROM (VALUES (OLD.tenant, OLD.status, -1), (NEW.tenant, NEW.status, 1)) AS change (tenant, status, by)
        WHERE status IS NOT NULL ORDER BY tenant, status
        ON CONFLICT (tenant, status) DO UPDATE SET count = known.count + excluded.count;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION redrive.count_dead_letters FROM PUBLIC;
CREATE TRIGGER count_dead_letters AFTER INSERT OR DELETE OR UPDATE OF tenant, status ON redrive.dead_letters
    FOR EACH ROW EXECUTE FUNCTION redrive.count_dead_letters();

-- Failures that look alike since the last alert.
CREATE TABLE redrive.alerts (
    tenant text NOT NULL,
    fingerprint text NOT NULL,
    count bigint NOT NULL,
    sent_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, fingerprint)
);

ALTER TABLE redrive.runs ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.dead_letters ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.dead_letter_counts ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.alerts ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON redrive.runs USING (redrive.sees(tenant)) WITH CHECK (redrive.is_own(tenant));
CREATE POLICY tenant ON redrive.dead_letters USING (redrive.sees(tenant)) WITH CHECK (redrive.is_own(tenant));
CREATE POLICY tenant ON redrive.dead_letter_counts USING (redrive.sees(tenant)) WITH CHECK (false);
CREATE POLICY tenant ON redrive.alerts USING (redrive.sees(tenant)) WITH CHECK (redrive.is_own(tenant));

GRANT SELECT, INSERT, UPDATE ON redrive.runs, redrive.dead_letters, redrive.alerts TO redrive_app;
GRANT SELECT ON redrive.dead_letter_counts TO redrive_app;
