-- Events from brokers, what their projectors made of them, and messages that could not become a run.

-- An event, once for each dedupe key of a tenant. The payload is as it came (json, not jsonb): it is what is replayed.
CREATE TABLE redrive.events (
    id text PRIMARY KEY,
    tenant text NOT NULL,
    dedupe_key text NOT NULL,
    type text NOT NULL,
    source text NOT NULL,
    user_id text,
    correlation_id text,
    occurred_at timestamptz,
    payload json NOT NULL,
    run_id text NOT NULL,
    received_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant, dedupe_key)
);
CREATE INDEX events_by_time ON redrive.events (tenant, received_at DESC, id DESC);
CREATE INDEX events_by_type ON redrive.events (tenant, type, received_at DESC, id DESC);
CREATE INDEX events_all ON redrive.events (received_at DESC, id DESC);

-- Where each projector of an event is. `completed_at` is when it last succeeded or failed for good.
CREATE TABLE redrive.event_projections (
    event_id text NOT NULL,
    projector text NOT NULL,
    tenant text NOT NULL,
    status text NOT NULL CHECK (status IN ('succeeded', 'failed', 'replaying', 'resolved', 'discarded')),
    attempt integer NOT NULL,
    error text,
    run_id text NOT NULL,
    started_at timestamptz NOT NULL,
    completed_at timestamptz NOT NULL,
    PRIMARY KEY (event_id, projector)
);
CREATE INDEX event_projections_failed ON redrive.event_projections (tenant, completed_at, event_id)
    WHERE status = 'failed';

-- Runs that an operator had made of some of an event's projectors, by the key of the run.
CREATE TABLE redrive.event_replays (
    key text PRIMARY KEY,
    tenant text NOT NULL,
    event_id text NOT NULL,
    run_id text NOT NULL,
    projectors text[] NOT NULL,
    requested_by text NOT NULL,
    reason text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX event_replays_by_event ON redrive.event_replays (event_id);

-- Messages that could not become a run. The id is made of stream, message id and content: a message is here once, and
-- another one that got the same message id (a broker that lost its memory) is not taken for it.
CREATE TABLE redrive.dead_events (
    id text PRIMARY KEY,
    tenant text NOT NULL,
    source_stream text NOT NULL,
    source_message_id text NOT NULL,
    origin text NOT NULL,
    payload bytea NOT NULL,
    event_type text,
    dedupe_key text,
    category text NOT NULL,
    error_type text NOT NULL,
    error text NOT NULL,
    attempts integer NOT NULL,
    last_attempt_at timestamptz NOT NULL DEFAULT now(),
    status text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'replaying', 'replayed', 'discarded')),
    event_id text,
    run_id text,
    -- When the message was put on the broker's own dead letter stream; until then that is still to be done.
    mirrored_at timestamptz,
    version bigint NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX dead_events_by_time ON redrive.dead_events (tenant, last_attempt_at DESC, id DESC);
CREATE INDEX dead_events_by_status ON redrive.dead_events (tenant, status, last_attempt_at DESC, id DESC);
CREATE INDEX dead_events_all ON redrive.dead_events (last_attempt_at DESC, id DESC);
CREATE INDEX dead_events_not_mirrored ON redrive.dead_events (source_stream, created_at) WHERE mirrored_at IS NULL;

ALTER TABLE redrive.events ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.event_projections ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.event_replays ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.dead_events ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON redrive.events USING (redrive.sees(tenant)) WITH CHECK (redrive.is_own(tenant));
CREATE POLICY tenant ON redrive.event_projections USING (redrive.sees(tenant)) WITH CHECK (redrive.is_own(tenant));
CREATE POLICY tenant ON redrive.event_replays USING (redrive.sees(tenant)) WITH CHECK (redrive.is_own(tenant));
CREATE POLICY tenant ON redrive.dead_events USING (redrive.sees(tenant)) WITH CHECK (redrive.is_own(tenant));
GRANT SELECT, INSERT, UPDATE ON redrive.events, redrive.event_projections, redrive.event_replays, redrive.dead_events
    TO redrive_app;

-- Store an event, in one round trip, and return what is stored: of two with the same dedupe key, the first. `has_run`
-- tells that its run has left a trace here: it is not to be started again, also when Temporal has forgotten it.
CREATE FUNCTION redrive.put_event(given jsonb, content json)
    RETURNS TABLE (is_new boolean, has_run boolean, stored redrive.events) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    event redrive.events := jsonb_populate_record(NULL::redrive.events, given);
BEGIN
    PERFORM set_config('redrive.tenant', event.tenant, true);
    INSERT INTO redrive.events (id, tenant, dedupe_key, type, source, user_id, correlation_id, occurred_at, payload, run_id)
    VALUES (event.id, event.tenant, event.dedupe_key, event.type, event.source, event.user_id, event.correlation_id,
            event.occurred_at, content, event.run_id)
    ON CONFLICT DO NOTHING;
    is_new := FOUND;
    SELECT known.* INTO STRICT stored FROM redrive.events AS known
        WHERE known.tenant = event.tenant AND known.dedupe_key = event.dedupe_key;
    has_run := NOT is_new AND (
        EXISTS (SELECT FROM redrive.runs WHERE run_id = stored.run_id)
        OR EXISTS (SELECT FROM redrive.event_projections WHERE event_id = stored.id));
    RETURN NEXT;
END
$$;

-- A projector has succeeded. The database's clock tells when: what is written last is what happened last.
CREATE FUNCTION redrive.put_projection(given jsonb, took interval) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    made redrive.event_projections := jsonb_populate_record(NULL::redrive.event_projections, given);
BEGIN
    PERFORM set_config('redrive.tenant', made.tenant, true);
    INSERT INTO redrive.event_projections
        (event_id, projector, tenant, status, attempt, error, run_id, started_at, completed_at)
    VALUES (made.event_id, made.projector, made.tenant, 'succeeded', made.attempt, NULL, made.run_id, now() - took, now())
    ON CONFLICT (event_id, projector) DO UPDATE SET status = excluded.status, attempt = excluded.attempt, error = NULL,
        run_id = excluded.run_id, started_at = excluded.started_at, completed_at = excluded.completed_at;
END
$$;

-- A projector that will not heal is a dead letter: its record follows the letter's, in the same transaction. The run's
-- key leads to the event: it is the event's dedupe key, or that of a replay of some of its projectors.
CREATE FUNCTION redrive.follow_dead_letter() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO redrive.event_projections
        (event_id, projector, tenant, status, attempt, error, run_id, started_at, completed_at)
    SELECT event.id, NEW.step, NEW.tenant,
           CASE NEW.status WHEN 'pending' THEN 'failed' WHEN 'replayed' THEN 'succeeded' ELSE NEW.status END,
           coalesce((NEW.attempts -> -1 ->> 'attempt')::integer, 1),
           CASE WHEN NEW.status <> 'replayed' THEN NEW.message END,
           NEW.run_id, NEW.first_failed_at, now()
    FROM (SELECT id FROM redrive.events WHERE tenant = NEW.tenant AND dedupe_key = NEW.idempotency_key
          UNION SELECT event_id FROM redrive.event_replays WHERE tenant = NEW.tenant AND key = NEW.idempotency_key) AS event
    ON CONFLICT (event_id, projector) DO UPDATE SET status = excluded.status, error = excluded.error,
        run_id = excluded.run_id, completed_at = excluded.completed_at,
        attempt = CASE WHEN excluded.status = 'succeeded' THEN event_projections.attempt ELSE excluded.attempt END,
        started_at = CASE WHEN excluded.status = 'succeeded' THEN event_projections.started_at
                          ELSE excluded.started_at END;
    RETURN NULL;
END
$$;
CREATE TRIGGER follow_dead_letter AFTER INSERT OR UPDATE OF status, cycle ON redrive.dead_letters
    FOR EACH ROW WHEN (NEW.idempotency_key IS NOT NULL) EXECUTE FUNCTION redrive.follow_dead_letter();

-- A message could not become a run: its row, and the line in the audit log, once however often it is told.
CREATE FUNCTION redrive.put_dead_event(given jsonb, content bytea) RETURNS boolean LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    dead redrive.dead_events := jsonb_populate_record(NULL::redrive.dead_events, given);
BEGIN
    PERFORM set_config('redrive.tenant', dead.tenant, true);
    INSERT INTO redrive.dead_events (id, tenant, source_stream, source_message_id, origin, payload, event_type, dedupe_key,
                                     category, error_type, error, attempts)
    VALUES (dead.id, dead.tenant, dead.source_stream, dead.source_message_id, dead.origin, content, dead.event_type,
            dead.dedupe_key, dead.category, dead.error_type, dead.error, dead.attempts)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO redrive.audit_log (tenant, action, dead_letter, actor, after)
    VALUES (dead.tenant, 'event_dead_lettered', dead.id, 'redrive',
            jsonb_build_object('status', 'pending', 'category', dead.category, 'source_stream', dead.source_stream));
    RETURN true;
END
$$;

REVOKE ALL ON FUNCTION redrive.put_event, redrive.put_projection, redrive.follow_dead_letter, redrive.put_dead_event
    FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redrive.put_event, redrive.put_projection, redrive.put_dead_event TO redrive_app;
