-- What the workers of a task queue can run, for processes that do not have the modules' code. Each build of the code has a
-- row; workers of one build share it. Not of a tenant: every tenant's runs are made of the same modules.
CREATE TABLE redrive.catalogs (
    namespace text NOT NULL,
    task_queue text NOT NULL,
    build_id text NOT NULL,
    digest text NOT NULL,
    -- As text: jsonb refuses some texts that a schema may hold.
    document text NOT NULL,
    published_at timestamptz NOT NULL DEFAULT now(),
    seen_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (namespace, task_queue, build_id, digest)
);

ALTER TABLE redrive.catalogs ENABLE ROW LEVEL SECURITY;
CREATE POLICY everybody ON redrive.catalogs USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON redrive.catalogs TO redrive_app;
