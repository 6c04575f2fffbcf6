-- What a caller says of a run, by name, so that lists of dead letters can be filtered by it. Labels belong to the run: its dead
-- letters have them by its id, and they are deleted with its row.

CREATE TABLE redrive.run_labels (
    tenant text NOT NULL,
    run_id text NOT NULL REFERENCES redrive.runs (run_id) ON DELETE CASCADE,
    name text NOT NULL,
    value text NOT NULL,
    PRIMARY KEY (run_id, name)
);
CREATE INDEX run_labels_by_value ON redrive.run_labels (tenant, name, value, run_id);

ALTER TABLE redrive.run_labels ENABLE ROW LEVEL SECURITY;
CREATE POLICY reading ON redrive.run_labels FOR SELECT USING (redrive.sees(tenant));
CREATE POLICY adding ON redrive.run_labels FOR INSERT WITH CHECK (redrive.is_own(tenant));
GRANT SELECT, INSERT ON redrive.run_labels TO redrive_app;

-- Store a run's labels, which never change. Its row is there: both are written by whoever reports on the run.
CREATE FUNCTION redrive.put_labels(whose text, run text, labels jsonb) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('redrive.tenant', whose, true);
    INSERT INTO redrive.run_labels (tenant, run_id, name, value)
    SELECT whose, run, each.key, each.value FROM jsonb_each_text(labels) AS each
    ON CONFLICT DO NOTHING;
END
$$;
REVOKE ALL ON FUNCTION redrive.put_labels FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redrive.put_labels TO redrive_app;
