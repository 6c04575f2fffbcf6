-- Steps that wait for their next attempt, or make it: for those who look. The truth about a retry is in Temporal, which
-- cannot count them.

CREATE TABLE redrive.retrying (
    tenant text NOT NULL,
    run_id text NOT NULL,
    step text NOT NULL,
    pipeline text NOT NULL,
    -- The attempt that failed last. A word of an older one is late.
    cycle integer NOT NULL,
    attempt integer NOT NULL,
    max_attempts integer NOT NULL,
    category text NOT NULL,
    error_type text NOT NULL,
    error text NOT NULL,
    failed_at timestamptz NOT NULL,
    next_at timestamptz NOT NULL,
    -- A step of which nothing was heard until then is not counted any more: its run was canceled or terminated.
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, run_id, step)
);
CREATE INDEX retrying_by_time ON redrive.retrying (tenant, next_at, run_id, step);
CREATE INDEX retrying_all ON redrive.retrying (next_at, run_id, step);

ALTER TABLE redrive.retrying ENABLE ROW LEVEL SECURITY;
-- Deleting is writing: what reads the rows of all tenants must not delete any.
CREATE POLICY reading ON redrive.retrying FOR SELECT USING (redrive.sees(tenant));
CREATE POLICY adding ON redrive.retrying FOR INSERT WITH CHECK (redrive.is_own(tenant));
CREATE POLICY changing ON redrive.retrying FOR UPDATE USING (redrive.is_own(tenant));
CREATE POLICY removing ON redrive.retrying FOR DELETE USING (redrive.is_own(tenant));
GRANT SELECT, INSERT, UPDATE, DELETE ON redrive.retrying TO redrive_app;

-- An attempt failed and another follows.
CREATE FUNCTION redrive.put_retrying(given jsonb) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fresh redrive.retrying := jsonb_populate_record(NULL::redrive.retrying, given);
BEGIN
    -- No waiting for the disk: what a crash of the server takes back is written again by the next attempt.
    PERFORM set_config('redrive.tenant', fresh.tenant, true), set_config('synchronous_commit', 'off', true);
    INSERT INTO redrive.retrying AS known SELECT fresh.*
    ON CONFLICT (tenant, run_id, step) DO UPDATE SET
        cycle = excluded.cycle, attempt = excluded.attempt, max_attempts = excluded.max_attempts,
        category = excluded.category, error_type = excluded.error_type, error = excluded.error,
        failed_at = excluded.failed_at, next_at = excluded.next_at, expires_at = excluded.expires_at
    WHERE (known.cycle, known.attempt) <= (excluded.cycle, excluded.attempt);
END
$$;

-- A later attempt has ended the step.
CREATE FUNCTION redrive.clear_retrying(given jsonb) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ended redrive.retrying := jsonb_populate_record(NULL::redrive.retrying, given);
BEGIN
    PERFORM set_config('redrive.tenant', ended.tenant, true), set_config('synchronous_commit', 'off', true);
    DELETE FROM redrive.retrying AS known
    WHERE (known.tenant, known.run_id, known.step) = (ended.tenant, ended.run_id, ended.step)
        AND (known.cycle, known.attempt) < (ended.cycle, ended.attempt);
END
$$;

REVOKE ALL ON FUNCTION redrive.put_retrying, redrive.clear_retrying FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redrive.put_retrying, redrive.clear_retrying TO redrive_app;
