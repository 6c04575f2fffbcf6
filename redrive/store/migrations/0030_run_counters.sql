-- Numbers that a run keeps over all its steps, attempts and replays: what it has used of a budget.

CREATE TABLE redrive.run_counters (
    tenant text NOT NULL,
    run_id text NOT NULL,
    name text NOT NULL,
    value bigint NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, run_id, name)
);
CREATE INDEX run_counters_expired ON redrive.run_counters (expires_at);

ALTER TABLE redrive.run_counters ENABLE ROW LEVEL SECURITY;
-- Deleting is writing: what reads the rows of all tenants must not delete any.
CREATE POLICY reading ON redrive.run_counters FOR SELECT USING (redrive.sees(tenant));
CREATE POLICY adding ON redrive.run_counters FOR INSERT WITH CHECK (redrive.is_own(tenant));
CREATE POLICY changing ON redrive.run_counters FOR UPDATE USING (redrive.is_own(tenant));
CREATE POLICY removing ON redrive.run_counters FOR DELETE USING (redrive.is_own(tenant));
GRANT SELECT, INSERT, UPDATE, DELETE ON redrive.run_counters TO redrive_app;

-- Add to a counter and return its value; NULL if that would exceed the limit, and then nothing is added.
CREATE FUNCTION redrive.add_to_counter(given jsonb) RETURNS bigint LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fresh redrive.run_counters := jsonb_populate_record(NULL::redrive.run_counters, given);
    total bigint;
BEGIN
    PERFORM set_config('redrive.tenant', fresh.tenant, true);
    -- Locks the row: two calls of one run cannot both take what is left.
    INSERT INTO redrive.run_counters AS known (tenant, run_id, name, value, expires_at)
    VALUES (fresh.tenant, fresh.run_id, fresh.name, 0, fresh.expires_at)
    ON CONFLICT (tenant, run_id, name) DO UPDATE SET expires_at = excluded.expires_at
    RETURNING known.value + fresh.value INTO total;
    IF total > (given ->> 'limit')::bigint THEN
        RETURN NULL;
    END IF;
    UPDATE redrive.run_counters AS known SET value = total
    WHERE (known.tenant, known.run_id, known.name) = (fresh.tenant, fresh.run_id, fresh.name);
    RETURN total;
END
$$;
REVOKE ALL ON FUNCTION redrive.add_to_counter FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redrive.add_to_counter TO redrive_app;
