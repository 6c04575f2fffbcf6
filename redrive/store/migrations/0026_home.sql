-- Which Temporal namespace the rows of this database belong to: noted when a worker first uses the database. A namespace's id
-- is unique over all clusters. Another stack that meets these rows leaves them alone.
CREATE TABLE redrive.home (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    namespace_id text NOT NULL,
    namespace text NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT now()
);

-- Note the namespace if none is noted; the one that counts is the answer.
CREATE FUNCTION redrive.note_home(id text, name text, OUT namespace_id text, OUT namespace text)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO redrive.home (namespace_id, namespace) VALUES (id, name) ON CONFLICT DO NOTHING;
    SELECT home.namespace_id, home.namespace INTO note_home.namespace_id, note_home.namespace FROM redrive.home AS home;
END
$$;
REVOKE ALL ON FUNCTION redrive.note_home FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redrive.note_home TO redrive_app;
