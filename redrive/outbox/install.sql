-- Redrive's outbox: the table, and the functions that programs, operators and bridges call. It may be executed again at any time:
-- it makes what is missing and changes no row. It needs nothing else of Redrive's in this database.

CREATE SCHEMA IF NOT EXISTS @schema@;

CREATE TABLE IF NOT EXISTS @schema@.outbox (
    event_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    position bigint GENERATED ALWAYS AS IDENTITY,
    tenant text NOT NULL DEFAULT 'default' CHECK (tenant ~ '^[a-z0-9-]{1,64}$'),
    pipeline text NOT NULL CHECK (pipeline ~ '^[a-z0-9-]{1,64}$'),
    key text NOT NULL CHECK (char_length(key) BETWEEN 1 AND 255),
    payload jsonb NOT NULL CHECK (jsonb_typeof(payload) = 'object'),
    ordering_key text CHECK (char_length(ordering_key) BETWEEN 1 AND 255),
    labels jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(labels) = 'object'),
    correlation_id text CHECK (char_length(correlation_id) BETWEEN 1 AND 255),
    user_id text CHECK (char_length(user_id) BETWEEN 1 AND 255),
    status text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'in_flight', 'delivered', 'failed')),
    run_after timestamptz NOT NULL DEFAULT now(),
    -- Behind an earlier row of its ordering key that is not over.
    waits boolean NOT NULL DEFAULT false,
    run_id text,
    -- Of the current cycle: attempts, the last error, and when it failed first.
    attempts integer NOT NULL DEFAULT 0,
    last_error text,
    category text,
    first_failed_at timestamptz,
    failed_at timestamptz,
    failed_step text,
    cycle integer NOT NULL DEFAULT 0,
    failure_history jsonb NOT NULL DEFAULT '[]',
    generation bigint NOT NULL DEFAULT 0,
    replays integer NOT NULL DEFAULT 0,
    replayed_by text,
    replay_reason text,
    -- Of a replay that no bridge has carried out yet.
    replay_request text,
    created_at timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz,
    -- When a bridge asks next for the outcome of the run; NULL: there is nothing to ask.
    check_at timestamptz,
    -- Its run has ended, well or not.
    ended_at timestamptz,
    -- Set by you: the row is withdrawn. One that is pending never starts.
    deleted_at timestamptz,
    UNIQUE (tenant, key)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE INDEX IF NOT EXISTS outbox_pending ON @schema@.outbox (run_after, position)
    WHERE status = 'pending' AND replay_request IS NULL AND NOT waits AND deleted_at IS NULL;
CREATE INDEX IF NOT EXISTS outbox_replayed ON @schema@.outbox (run_after, position)
    WHERE status = 'pending' AND replay_request IS NOT NULL AND deleted_at IS NULL;
CREATE INDEX IF NOT EXISTS outbox_followed ON @schema@.outbox (check_at) WHERE check_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS outbox_ordered ON @schema@.outbox (tenant, ordering_key, position)
    WHERE ordering_key IS NOT NULL AND ended_at IS NULL AND deleted_at IS NULL;
-- For lists of rows that are not delivered, among however many that are.
CREATE INDEX IF NOT EXISTS outbox_undelivered ON @schema@.outbox (status, created_at, event_id)
    WHERE status <> 'delivered' AND deleted_at IS NULL;
DROP INDEX IF EXISTS @schema@.outbox_failed;
CREATE INDEX IF NOT EXISTS outbox_listed ON @schema@.outbox (created_at, event_id);
CREATE INDEX IF NOT EXISTS outbox_listed_by_tenant ON @schema@.outbox (tenant, created_at, event_id);

-- What `redrive outbox sync` stores: the JSON schema of the payload of each pipeline.
CREATE TABLE IF NOT EXISTS @schema@.outbox_schemas (
    pipeline text PRIMARY KEY,
    schema jsonb NOT NULL,
    synced_at timestamptz NOT NULL DEFAULT now()
);

-- The release of this file. A bridge refuses to work with an older one.
CREATE OR REPLACE FUNCTION @schema@.outbox_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 2';

-- Why a value does not fit a JSON schema, with the field's name; NULL if it fits. It refuses only what a module refuses as well:
-- modules read "5" as a number, so a text for a number is left to them, and so are the keywords that are not here.
CREATE OR REPLACE FUNCTION @schema@.outbox_misfit(p_schema jsonb, p_root jsonb, p_value jsonb, p_path text, p_depth integer)
    RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    kind text := jsonb_typeof(p_value);
    wanted text := CASE WHEN jsonb_typeof(p_schema -> 'type') = 'string' THEN p_schema ->> 'type' END;
    problem text;
    first_problem text;
    part record;
BEGIN
    IF p_depth > 32 OR jsonb_typeof(p_schema) IS DISTINCT FROM 'object' THEN
        RETURN NULL;
    END IF;
    IF p_schema ->> '$ref' LIKE '#/%' THEN
        RETURN @schema@.outbox_misfit(p_root #> string_to_array(substr(p_schema ->> '$ref', 3), '/'), p_root, p_value,
                                      p_path, p_depth + 1);
    END IF;
    IF jsonb_typeof(p_schema -> 'anyOf') = 'array' THEN
        FOR part IN SELECT value FROM jsonb_array_elements(p_schema -> 'anyOf') LOOP
            problem := @schema@.outbox_misfit(part.value, p_root, p_value, p_path, p_depth + 1);
            IF problem IS NULL THEN
                RETURN NULL;
            END IF;
            first_problem := coalesce(first_problem, problem);
        END LOOP;
        RETURN first_problem;
    END IF;
    IF wanted IN ('object', 'array', 'string', 'null') AND kind <> wanted THEN
        RETURN format('%s: is %s, must be %s', p_path, kind, wanted);
    ELSIF wanted IN ('integer', 'number', 'boolean') AND kind IN ('object', 'array', 'null') THEN
        RETURN format('%s: is %s, must be %s', p_path, kind, wanted);
    END IF;
    IF kind = 'string' AND jsonb_typeof(p_schema -> 'enum') = 'array' AND NOT p_schema -> 'enum' @> jsonb_build_array(p_value) THEN
        RETURN format('%s: %s is not one of %s', p_path, left(p_value::text, 80), left(p_schema ->> 'enum', 200));
    END IF;
    IF kind = 'string' AND char_length(p_value #>> '{}') < (p_schema ->> 'minLength')::numeric THEN
        RETURN format('%s: has fewer than %s characters', p_path, p_schema ->> 'minLength');
    END IF;
    IF kind = 'number' AND ((p_value::text)::numeric < (p_schema ->> 'minimum')::numeric
                            OR (p_value::text)::numeric <= (p_schema ->> 'exclusiveMinimum')::numeric
                            OR (p_value::text)::numeric > (p_schema ->> 'maximum')::numeric
                            OR (p_value::text)::numeric >= (p_schema ->> 'exclusiveMaximum')::numeric) THEN
        RETURN format('%s: %s is out of range', p_path, left(p_value::text, 80));
    END IF;
    IF kind = 'object' THEN
        FOR part IN SELECT value #>> '{}' AS name FROM jsonb_array_elements(coalesce(p_schema -> 'required', '[]')) LOOP
            IF NOT p_value ? part.name THEN
                RETURN format('%s.%s: is missing', p_path, part.name);
            END IF;
        END LOOP;
        FOR part IN SELECT key, value FROM jsonb_each(p_value) LOOP
            IF p_schema -> 'properties' ? part.key THEN
                problem := @schema@.outbox_misfit(p_schema -> 'properties' -> part.key, p_root, part.value,
                                                  p_path || '.' || left(part.key, 80), p_depth + 1);
            ELSIF p_schema -> 'additionalProperties' = 'false' THEN
                problem := format('%s.%s: is not a field', p_path, left(part.key, 80));
            END IF;
            IF problem IS NOT NULL THEN
                RETURN problem;
            END IF;
        END LOOP;
    ELSIF kind = 'array' AND jsonb_typeof(p_schema -> 'items') = 'object' THEN
        -- The worker reads them all; this is to refuse a mistake early, in bounded time.
        FOR part IN SELECT value, ordinality - 1 AS place
                    FROM jsonb_array_elements(p_value) WITH ORDINALITY LIMIT 200 LOOP
            problem := @schema@.outbox_misfit(p_schema -> 'items', p_root, part.value, format('%s[%s]', p_path, part.place),
                                              p_depth + 1);
            IF problem IS NOT NULL THEN
                RETURN problem;
            END IF;
        END LOOP;
    END IF;
    RETURN NULL;
END
$$;

-- Ask for a run, in your transaction: it starts if and only if the transaction commits. The same key again is the same row.
-- Rows of one ordering key run one after another, in the order in which their transactions commit.
CREATE OR REPLACE FUNCTION @schema@.enqueue(
    pipeline text, payload jsonb, key text DEFAULT NULL, tenant text DEFAULT 'default', run_after timestamptz DEFAULT NULL,
    ordering_key text DEFAULT NULL, labels jsonb DEFAULT '{}', correlation_id text DEFAULT NULL, user_id text DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    id uuid := gen_random_uuid();
    shape jsonb := (SELECT known.schema FROM @schema@.outbox_schemas AS known WHERE known.pipeline = enqueue.pipeline);
    problem text;
    earlier @schema@.outbox;
    must_wait boolean := false;
BEGIN
    problem := CASE
        WHEN pipeline IS NULL OR pipeline !~ '^[a-z0-9-]{1,64}$' THEN 'pipeline: must have 1 to 64 of a-z, 0-9 and -'
        WHEN tenant IS NULL OR tenant !~ '^[a-z0-9-]{1,64}$' THEN 'tenant: must have 1 to 64 of a-z, 0-9 and -'
        WHEN key !~ '^[^[:space:][:cntrl:]]{1,255}$' THEN 'key: must have 1 to 255 visible characters'
        WHEN ordering_key !~ '^[^[:space:][:cntrl:]]{1,255}$' THEN 'ordering_key: must have 1 to 255 visible characters'
        WHEN payload IS NULL OR jsonb_typeof(payload) <> 'object' THEN 'payload: must be a JSON object'
        WHEN octet_length(payload::text) > 1048576 THEN
            format('payload: %s bytes; the limit is 1048576 (pass a reference to large data)', octet_length(payload::text))
        WHEN labels IS NULL OR jsonb_typeof(labels) <> 'object' THEN 'labels: must be a JSON object of texts'
        ELSE @schema@.outbox_misfit(shape, shape, payload, 'payload', 0)
    END;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'enqueue(''%''): %', left(pipeline, 64), problem USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF ordering_key IS NOT NULL THEN
        -- Held until the commit: whoever comes next sees this row.
        PERFORM pg_advisory_xact_lock(hashtextextended('@schema@.outbox ' || tenant || ' ' || ordering_key, 0));
        must_wait := EXISTS (
            SELECT FROM @schema@.outbox AS known
            WHERE known.tenant = enqueue.tenant AND known.ordering_key = enqueue.ordering_key
                AND known.ended_at IS NULL AND known.deleted_at IS NULL);
    END IF;
    INSERT INTO @schema@.outbox (event_id, tenant, pipeline, key, payload, ordering_key, labels, correlation_id, user_id,
                                 run_after, waits)
    VALUES (id, tenant, pipeline, coalesce(key, 'outbox:' || id), payload, ordering_key, labels, correlation_id, user_id,
            coalesce(run_after, now()), must_wait)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        SELECT * INTO earlier FROM @schema@.outbox AS known WHERE known.tenant = enqueue.tenant AND known.key = enqueue.key;
        IF (earlier.pipeline, earlier.payload) IS DISTINCT FROM (pipeline, payload) THEN
            RAISE EXCEPTION 'enqueue(''%''): key: % was used for another pipeline or payload', pipeline, quote_literal(key)
                USING ERRCODE = 'unique_violation';
        END IF;
        RETURN earlier.event_id;
    END IF;
    IF run_after IS NULL OR run_after <= now() THEN
        PERFORM pg_notify('redrive_outbox', '@schema@ rows ' || extract(epoch FROM coalesce(run_after, now())));
    END IF;
    RETURN id;
END
$$;

-- The current cycle as an entry of failure_history.
CREATE OR REPLACE FUNCTION @schema@.outbox_history(failed @schema@.outbox, p_replayed_by text) RETURNS jsonb LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN jsonb_array_length(failed.failure_history) >= 100 THEN failed.failure_history - 0 ELSE failed.failure_history END
        || jsonb_build_object(
            'cycle', failed.cycle, 'attempts', failed.attempts, 'last_error', failed.last_error, 'category', failed.category,
            'first_failed_at', failed.first_failed_at, 'failed_at', failed.failed_at, 'failed_step', failed.failed_step,
            'generation', failed.generation, 'replayed_by', p_replayed_by, 'replayed_at', now())
$$;

-- Replay a failed row in place: its cycle goes into failure_history, the row is pending again, and its parked run continues.
-- Everything is one statement's work: call it by psql, alone or in a transaction.
CREATE OR REPLACE FUNCTION @schema@.outbox_replay(
    event_id uuid, p_new_generation bigint, p_replayed_by text, p_reason text DEFAULT NULL
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    known @schema@.outbox;
    problem text;
BEGIN
    SELECT * INTO known FROM @schema@.outbox AS each WHERE each.event_id = outbox_replay.event_id FOR UPDATE;
    problem := CASE
        WHEN known.event_id IS NULL THEN 'no row has this id'
        WHEN p_new_generation IS NULL THEN 'p_new_generation: give a number'
        WHEN p_replayed_by IS NULL OR p_replayed_by !~ '^[^[:cntrl:]]{1,255}$' THEN
            'p_replayed_by: say who replays it, in 1 to 255 visible characters'
        WHEN char_length(p_reason) > 1000 THEN 'p_reason: has more than 1000 characters'
        WHEN known.deleted_at IS NOT NULL THEN 'the row was withdrawn (deleted_at)'
        WHEN known.status <> 'failed' THEN format('the row is %s: only a failed one can be replayed', known.status)
        WHEN known.ended_at IS NOT NULL THEN
            format('its run %s has ended for good: enqueue again, with another key', known.run_id)
    END;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION 'outbox_replay(''%''): %', event_id, problem USING ERRCODE = 'invalid_parameter_value';
    END IF;
    UPDATE @schema@.outbox AS each SET
        failure_history = @schema@.outbox_history(known, p_replayed_by),
        attempts = 0, last_error = NULL, category = NULL, first_failed_at = NULL, failed_at = NULL,
        generation = p_new_generation, replayed_by = p_replayed_by, replay_reason = p_reason, replays = known.replays + 1,
        replay_request = format('outbox-%s-%s', known.event_id, known.replays + 1),
        status = 'pending', run_after = now(), check_at = NULL
    WHERE each.event_id = known.event_id;
    PERFORM pg_notify('redrive_outbox', '@schema@ replays ' || extract(epoch FROM now()));
    RETURN 'pending';
END
$$;

-- For bridges: take rows that are due, those behind a place in their order. They are locked until the transaction ends; a bridge that
-- dies lets them go. From the beginning it reads all that was taken since the last vacuum: hence the place. The transaction may have
-- begun before a row was made: hence clock_timestamp().
DROP FUNCTION IF EXISTS @schema@.outbox_take(integer), @schema@.outbox_take_replays(integer);
CREATE OR REPLACE FUNCTION @schema@.outbox_take(p_limit integer, p_run_after timestamptz DEFAULT '-infinity', p_position bigint DEFAULT 0)
    RETURNS SETOF @schema@.outbox LANGUAGE plpgsql VOLATILE
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY SELECT * FROM @schema@.outbox
    WHERE status = 'pending' AND replay_request IS NULL AND NOT waits AND deleted_at IS NULL AND run_after <= moment
        AND (run_after, position) > (p_run_after, p_position)
    ORDER BY run_after, position LIMIT p_limit FOR UPDATE SKIP LOCKED;
END
$$;

-- For bridges: the same for replays, which wait for a worker's answer and must not keep others from starting.
CREATE OR REPLACE FUNCTION @schema@.outbox_take_replays(
    p_limit integer, p_run_after timestamptz DEFAULT '-infinity', p_position bigint DEFAULT 0
) RETURNS SETOF @schema@.outbox LANGUAGE plpgsql VOLATILE
    SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
    moment timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY SELECT * FROM @schema@.outbox
    WHERE status = 'pending' AND replay_request IS NOT NULL AND deleted_at IS NULL AND run_after <= moment
        AND (run_after, position) > (p_run_after, p_position)
    ORDER BY run_after, position LIMIT p_limit FOR UPDATE SKIP LOCKED;
END
$$;

-- For bridges: these rows have their runs, since so many seconds. It is not waited for the disk: what a crash of PostgreSQL undoes is
-- done again, to the same effect.
DROP FUNCTION IF EXISTS @schema@.outbox_started(uuid[], text[]);
CREATE OR REPLACE FUNCTION @schema@.outbox_started(p_events uuid[], p_runs text[], p_seconds float8[]) RETURNS void LANGUAGE sql
    VOLATILE AS $$
    SELECT set_config('synchronous_commit', 'off', true);
    UPDATE @schema@.outbox AS old SET
        status = 'in_flight', run_id = given.run_id,
        started_at = coalesce(old.started_at, clock_timestamp() - given.seconds * interval '1 s'),
        attempts = 0, last_error = NULL, category = NULL, first_failed_at = NULL, failed_at = NULL, replay_request = NULL,
        -- Until then the bridge that started it looks without a write; from then on, whichever bridge runs.
        check_at = clock_timestamp() + interval '10 s'
    FROM unnest(p_events, p_runs, p_seconds) AS given (event_id, run_id, seconds)
    WHERE old.event_id = given.event_id AND old.status = 'pending'
$$;

-- For bridges: a row has no run, or its replay was refused. It is tried again after a while, or without one, it has failed.
CREATE OR REPLACE FUNCTION @schema@.outbox_not_started(p_event uuid, p_error text, p_category text, p_again interval)
    RETURNS void LANGUAGE sql VOLATILE AS $$
    UPDATE @schema@.outbox AS old SET
        status = CASE WHEN p_again IS NULL THEN 'failed' ELSE 'pending' END,
        attempts = old.attempts + 1, last_error = p_error, category = p_category,
        first_failed_at = coalesce(old.first_failed_at, clock_timestamp()), failed_at = clock_timestamp(),
        replay_request = CASE WHEN p_again IS NULL THEN NULL ELSE old.replay_request END,
        run_after = CASE WHEN p_again IS NULL THEN old.run_after ELSE clock_timestamp() + p_again END,
        check_at = CASE WHEN p_again IS NULL AND old.run_id IS NOT NULL THEN clock_timestamp() + interval '1 s' END
    WHERE old.event_id = p_event AND old.status = 'pending'
$$;

-- For bridges: rows whose runs are to be asked about, every ten seconds; a parked one after a quarter of the time that it has been
-- parked, at most half a minute.
CREATE OR REPLACE FUNCTION @schema@.outbox_due(p_limit integer) RETURNS SETOF @schema@.outbox LANGUAGE sql VOLATILE AS $$
    SELECT set_config('synchronous_commit', 'off', true);
    UPDATE @schema@.outbox AS old SET
        check_at = clock_timestamp() + CASE old.status WHEN 'failed'
            THEN least(greatest((clock_timestamp() - coalesce(old.failed_at, old.started_at)) / 4, interval '1 s'), interval '30 s')
            ELSE interval '10 s' END
    WHERE old.event_id IN (
        -- Not clock_timestamp(): it is volatile, and all rows that are not due would be read.
        SELECT event_id FROM @schema@.outbox WHERE check_at <= now()
        ORDER BY check_at LIMIT p_limit FOR UPDATE SKIP LOCKED)
    RETURNING old.*
$$;

-- For bridges: the outcome of a run. What is older than what the row knows changes nothing.
CREATE OR REPLACE FUNCTION @schema@.outbox_follow(p_event uuid, p_fate jsonb) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    known @schema@.outbox;
    wanted text := p_fate ->> 'status';
    new_cycle integer := coalesce((p_fate ->> 'cycle')::integer, 0);
    is_over boolean := coalesce((p_fate ->> 'ended')::boolean, false);
    is_next boolean;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    SELECT * INTO known FROM @schema@.outbox WHERE event_id = p_event FOR UPDATE;
    IF known.check_at IS NULL OR known.ended_at IS NOT NULL OR known.run_id IS DISTINCT FROM p_fate ->> 'run_id' THEN
        RETURN false;
    END IF;
    IF wanted = 'failed' AND NOT is_over AND new_cycle <= known.cycle THEN
        RETURN false;
    ELSIF wanted = 'in_flight' AND known.status = 'in_flight' THEN
        RETURN false;
    END IF;
    -- Somebody replayed it elsewhere: its failed cycle is over.
    is_next := known.status = 'failed' AND (wanted <> 'failed' OR new_cycle > known.cycle);
    UPDATE @schema@.outbox AS old SET
        status = wanted,
        failure_history = CASE WHEN is_next THEN @schema@.outbox_history(known, p_fate ->> 'replayed_by')
            ELSE old.failure_history END,
        replayed_by = CASE WHEN is_next THEN coalesce(p_fate ->> 'replayed_by', old.replayed_by) ELSE old.replayed_by END,
        attempts = CASE WHEN wanted = 'failed' THEN coalesce((p_fate ->> 'attempts')::integer, old.attempts) ELSE 0 END,
        last_error = CASE WHEN wanted = 'failed' THEN coalesce(p_fate ->> 'last_error', old.last_error) END,
        category = CASE WHEN wanted = 'failed' THEN coalesce(p_fate ->> 'category', old.category) END,
        failed_step = CASE WHEN wanted = 'delivered' THEN NULL ELSE coalesce(p_fate ->> 'failed_step', old.failed_step) END,
        first_failed_at = CASE WHEN wanted = 'failed'
            THEN coalesce((p_fate ->> 'first_failed_at')::timestamptz, old.first_failed_at, clock_timestamp()) END,
        failed_at = CASE WHEN wanted = 'failed'
            THEN coalesce((p_fate ->> 'failed_at')::timestamptz, old.failed_at, clock_timestamp()) END,
        cycle = greatest(known.cycle, new_cycle),
        ended_at = CASE WHEN is_over THEN clock_timestamp() END,
        check_at = CASE WHEN is_over THEN NULL ELSE clock_timestamp() + interval '1 s' END
    WHERE old.event_id = p_event;
    RETURN true;
END
$$;

-- When a row is over, the next one of its ordering key may start.
CREATE OR REPLACE FUNCTION @schema@.outbox_release() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    due_at timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('@schema@.outbox ' || OLD.tenant || ' ' || OLD.ordering_key, 0));
    UPDATE @schema@.outbox AS next SET waits = false
    WHERE next.waits AND next.event_id = (
        SELECT event_id FROM @schema@.outbox
        WHERE tenant = OLD.tenant AND ordering_key = OLD.ordering_key AND ended_at IS NULL AND deleted_at IS NULL
        ORDER BY position LIMIT 1)
    RETURNING next.run_after INTO due_at;
    IF FOUND THEN
        PERFORM pg_notify('redrive_outbox', '@schema@ rows ' || extract(epoch FROM due_at));
    END IF;
    RETURN NULL;
END
$$;
CREATE OR REPLACE TRIGGER outbox_over AFTER UPDATE OF ended_at, deleted_at ON @schema@.outbox FOR EACH ROW
    WHEN (OLD.ordering_key IS NOT NULL AND OLD.ended_at IS NULL AND OLD.deleted_at IS NULL
          AND (NEW.ended_at IS NOT NULL OR NEW.deleted_at IS NOT NULL))
    EXECUTE FUNCTION @schema@.outbox_release();
CREATE OR REPLACE TRIGGER outbox_removed AFTER DELETE ON @schema@.outbox FOR EACH ROW
    WHEN (OLD.ordering_key IS NOT NULL AND OLD.ended_at IS NULL AND OLD.deleted_at IS NULL)
    EXECUTE FUNCTION @schema@.outbox_release();

-- For bridges: release rows that wait for nobody. A transaction with an old snapshot (REPEATABLE READ) may have taken a row that
-- was over for one that is not.
CREATE OR REPLACE FUNCTION @schema@.outbox_release_stuck() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    WITH released AS (
        UPDATE @schema@.outbox AS old SET waits = false
        WHERE old.waits AND old.ordering_key IS NOT NULL AND old.ended_at IS NULL AND old.deleted_at IS NULL
            AND NOT EXISTS (
                SELECT FROM @schema@.outbox AS earlier
                WHERE earlier.tenant = old.tenant AND earlier.ordering_key = old.ordering_key
                    AND earlier.position < old.position AND earlier.ended_at IS NULL AND earlier.deleted_at IS NULL)
        RETURNING 1)
    SELECT count(*) FROM released
$$;

REVOKE ALL ON FUNCTION @schema@.enqueue, @schema@.outbox_replay, @schema@.outbox_take, @schema@.outbox_take_replays, @schema@.outbox_started,
    @schema@.outbox_not_started, @schema@.outbox_due, @schema@.outbox_follow, @schema@.outbox_release_stuck FROM PUBLIC;
