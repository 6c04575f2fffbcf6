-- Bulk operations: which dead letters belong to one was settled when it started, and what became of each.

CREATE TABLE redrive.bulk_operations (
    tenant text NOT NULL,
    id text NOT NULL,
    verb text NOT NULL CHECK (verb IN ('replay', 'resolve', 'discard')),
    status text NOT NULL CHECK (status IN ('RUNNING', 'PAUSED', 'STOPPING', 'STOPPED', 'DONE')),
    -- What was ordered, without the content of an edit or an output: that may be secret.
    options jsonb NOT NULL,
    -- A hash of what is done to each item: a start with the same id goes on only with the same order.
    action_hash text NOT NULL,
    plan_hash text NOT NULL,
    request_id text NOT NULL,
    total integer NOT NULL,
    canary integer NOT NULL,
    requested_by text NOT NULL,
    reason text NOT NULL,
    stopped_because text,
    -- When items were taken last: the rate is kept by whoever goes on.
    last_sent_at timestamptz,
    started_at timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, id)
);
CREATE INDEX bulk_operations_by_time ON redrive.bulk_operations (tenant, started_at DESC, id DESC);
CREATE INDEX bulk_operations_all ON redrive.bulk_operations (started_at DESC, id DESC);

CREATE TABLE redrive.bulk_items (
    tenant text NOT NULL,
    bulk_id text NOT NULL,
    position integer NOT NULL,
    letter_id text NOT NULL,
    run_id text NOT NULL,
    step text NOT NULL,
    -- The version of the record when the membership was settled.
    version bigint NOT NULL,
    status text NOT NULL DEFAULT 'PENDING'
        CHECK (status IN ('PENDING', 'SENDING', 'ORDERED', 'APPLIED', 'SKIPPED', 'FAILED')),
    -- The letter's cycle when its replay was accepted: a later one means that it was exhausted again.
    cycle integer,
    -- When it was taken first: after a while without any answer it is given up.
    sent_at timestamptz,
    why text,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, bulk_id, position),
    FOREIGN KEY (tenant, bulk_id) REFERENCES redrive.bulk_operations (tenant, id)
);
CREATE INDEX bulk_items_by_status ON redrive.bulk_items (tenant, bulk_id, status, position);

-- Another person's yes to a plan: for one bulk operation, within an hour.
CREATE TABLE redrive.bulk_approvals (
    tenant text NOT NULL,
    plan_hash text NOT NULL,
    approved_by text NOT NULL,
    reason text NOT NULL,
    approved_at timestamptz NOT NULL DEFAULT now(),
    used_by text,
    PRIMARY KEY (tenant, plan_hash, approved_by)
);

ALTER TABLE redrive.bulk_operations ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.bulk_items ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.bulk_approvals ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON redrive.bulk_operations USING (redrive.sees(tenant)) WITH CHECK (redrive.is_own(tenant));
CREATE POLICY tenant ON redrive.bulk_items USING (redrive.sees(tenant)) WITH CHECK (redrive.is_own(tenant));
CREATE POLICY tenant ON redrive.bulk_approvals USING (redrive.sees(tenant)) WITH CHECK (redrive.is_own(tenant));
GRANT SELECT, INSERT, UPDATE ON redrive.bulk_operations, redrive.bulk_items, redrive.bulk_approvals TO redrive_app;
