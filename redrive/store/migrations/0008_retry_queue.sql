-- Messages of a broker that wait for their next retry, and those that were given up.

-- A row is a message that waits. One that was sent again leaves the table; one that was given up moves to dead_messages.
CREATE TABLE redrive.retry_queue (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant text NOT NULL,
    message_id uuid NOT NULL,
    original_payload bytea NOT NULL,
    original_queue varchar(255) NOT NULL,
    error_reason text,
    retry_count integer NOT NULL DEFAULT 0,
    max_retries integer NOT NULL DEFAULT 3,
    next_retry_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    -- replaying: an operator sent it, and its dead message is to hear of the outcome.
    status varchar(50) NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'replaying')),
    UNIQUE (tenant, message_id)
) WITH (
    -- Every row is deleted sooner or later. What is dead is swept out by the number of rows, not by their share: behind a
    -- million that wait, a share would let tens of thousands pile up at the end of the index that is read.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);
CREATE INDEX idx_retry_next_retry ON redrive.retry_queue (tenant, next_retry_at);

CREATE TABLE redrive.dead_messages (
    tenant text NOT NULL,
    message_id uuid NOT NULL,
    kind text NOT NULL CHECK (kind IN ('exhausted', 'malformed')),
    status text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'replaying', 'replayed', 'discarded')),
    source_queue varchar(255) NOT NULL,
    original_queue varchar(255) NOT NULL,
    original_payload bytea NOT NULL,
    error_reason text NOT NULL,
    retry_count integer NOT NULL,
    max_retries integer NOT NULL,
    cycle integer NOT NULL DEFAULT 1,
    replay_count integer NOT NULL DEFAULT 0,
    first_failed_at timestamptz NOT NULL DEFAULT now(),
    last_failed_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, message_id)
);
CREATE INDEX dead_messages_by_time ON redrive.dead_messages (tenant, last_failed_at DESC, message_id DESC);
CREATE INDEX dead_messages_by_status ON redrive.dead_messages (tenant, status, last_failed_at DESC, message_id DESC);
CREATE INDEX dead_messages_all ON redrive.dead_messages (last_failed_at DESC, message_id DESC);

ALTER TABLE redrive.retry_queue ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.dead_messages ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON redrive.retry_queue USING (redrive.sees(tenant)) WITH CHECK (redrive.is_own(tenant));
CREATE POLICY tenant ON redrive.dead_messages USING (redrive.sees(tenant)) WITH CHECK (redrive.is_own(tenant));
-- A deletion has no check of its own: who reads all tenants must not be able to delete from them.
CREATE POLICY own_deletions ON redrive.retry_queue AS RESTRICTIVE FOR DELETE USING (redrive.is_own(tenant));
GRANT SELECT, INSERT, UPDATE, DELETE ON redrive.retry_queue TO redrive_app;
GRANT SELECT, INSERT, UPDATE ON redrive.dead_messages TO redrive_app;
