-- The writes that are made once for each run or dead letter, each in one round trip: the tenant's counters and the end
-- of its audit log stay locked from the first write to the commit, so that time is what limits a tenant.
-- They run as the caller (row level security binds them) and take JSON: a new field needs no new signature.

-- Where a run is. A word about a step's cycle that comes after the run was parked for that cycle is late: ignored.
CREATE FUNCTION redrive.put_run(given jsonb) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run redrive.runs := jsonb_populate_record(NULL::redrive.runs, given);
BEGIN
    PERFORM set_config('redrive.tenant', run.tenant, true);
    run.closed_at := CASE WHEN run.status IN ('SUCCESS', 'FAILED', 'CANCELED') THEN now() END;
    INSERT INTO redrive.runs AS known (run_id, tenant, pipeline, status, failed_step, failed_cycle, category,
                                       correlation_id, idempotency_key, started_at, closed_at)
    VALUES (run.run_id, run.tenant, run.pipeline, run.status, run.failed_step, run.failed_cycle, run.category,
            run.correlation_id, run.idempotency_key, run.started_at, run.closed_at)
    ON CONFLICT (run_id) DO UPDATE SET
        status = excluded.status,
        closed_at = CASE WHEN known.status = excluded.status THEN known.closed_at ELSE excluded.closed_at END,
        failed_step = CASE WHEN excluded.status <> 'SUCCESS' THEN coalesce(excluded.failed_step, known.failed_step) END,
        failed_cycle = coalesce(excluded.failed_cycle, known.failed_cycle),
        category = CASE WHEN excluded.status <> 'SUCCESS' THEN coalesce(excluded.category, known.category) END,
        started_at = least(known.started_at, excluded.started_at),
        updated_at = now()
    WHERE NOT coalesce(known.status = 'DLQ_PENDING' AND known.failed_step = given ->> 'step'
                       AND known.failed_cycle >= (given ->> 'cycle')::integer, false);
END
$$;

-- Count one more failure that looks alike: how many since the last alert when a new one is due, else 0.
CREATE FUNCTION redrive.count_alert(whose text, mark text, quiet interval) RETURNS integer LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    alert redrive.alerts;
BEGIN
    INSERT INTO redrive.alerts AS known (tenant, fingerprint, count, sent_at) VALUES (whose, mark, 1, '-infinity')
        ON CONFLICT (tenant, fingerprint) DO UPDATE SET count = known.count + 1
        RETURNING * INTO alert;
    IF alert.sent_at > now() - quiet THEN
        RETURN 0;
    END IF;
    UPDATE redrive.alerts SET count = 0, sent_at = now() WHERE tenant = whose AND fingerprint = mark;
    RETURN alert.count;
END
$$;

-- A step was exhausted: its record is made, or gets one more cycle, with the run's row, the alert's count and the line
-- in the audit log. A cycle that the record has already changes nothing and has the same answer.
CREATE FUNCTION redrive.put_dead_letter(
    given jsonb, quiet interval,
    OUT is_new boolean, OUT alerts integer, OUT pipeline text, OUT status text, OUT cycle integer,
    OUT replay_count integer, OUT blocked_by text, OUT orphaned boolean
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    letter redrive.dead_letters := jsonb_populate_record(NULL::redrive.dead_letters, given);
    known redrive.dead_letters;
    entry jsonb := given -> 'entry';
BEGIN
    PERFORM set_config('redrive.tenant', letter.tenant, true);
    -- The row may not be there yet: two tries of one write must be one after another all the same.
    PERFORM pg_advisory_xact_lock(hashtextextended(letter.id, 0));
    SELECT * INTO known FROM redrive.dead_letters WHERE id = letter.id;
    is_new := known.id IS NULL OR known.cycle < letter.cycle;
    IF is_new THEN
        entry := entry || jsonb_build_object(
            'replayed_by', CASE WHEN known.status = 'replaying' THEN known.replayed_by END,
            'mode', CASE WHEN known.status = 'replaying' THEN known.replay_mode END,
            'reason', CASE WHEN known.status = 'replaying' THEN known.replay_reason END);
        letter.alert_count := CASE WHEN quiet IS NULL THEN 0
            ELSE redrive.count_alert(letter.tenant, letter.fingerprint, quiet) END;
        INSERT INTO redrive.dead_letters AS old (
            id, tenant, run_id, step, module, pipeline, status, category, error_type, message, stack, attempts, cycle,
            first_failed_at, last_failed_at, failure_history, payload, config, correlation_id, idempotency_key,
            generation, fingerprint, alert_count)
        VALUES (
            letter.id, letter.tenant, letter.run_id, letter.step, letter.module, letter.pipeline, 'pending',
            letter.category, letter.error_type, letter.message, letter.stack, letter.attempts, letter.cycle,
            letter.first_failed_at, letter.last_failed_at, jsonb_build_array(entry), letter.payload, letter.config,
            letter.correlation_id, letter.idempotency_key, letter.generation, letter.fingerprint, letter.alert_count)
        ON CONFLICT (id) DO UPDATE SET
            status = 'pending', category = excluded.category, error_type = excluded.error_type,
            message = excluded.message, stack = excluded.stack, attempts = excluded.attempts, cycle = excluded.cycle,
            first_failed_at = excluded.first_failed_at, last_failed_at = excluded.last_failed_at,
            failure_history = old.failure_history || excluded.failure_history,
            payload = excluded.payload, config = excluded.config, generation = excluded.generation,
            fingerprint = excluded.fingerprint, alert_count = excluded.alert_count,
            blocked_by = NULL, orphaned = false, order_request_id = NULL,
            resolution = NULL, resolved_by = NULL, resolved_at = NULL, resolution_reason = NULL,
            version = old.version + 1, updated_at = now();
        PERFORM redrive.put_run(given -> 'run');
        INSERT INTO redrive.audit_log (tenant, action, dead_letter, run_id, step, actor, before, after)
        VALUES (letter.tenant, 'dead_lettered', letter.id, letter.run_id, letter.step, 'redrive',
                CASE WHEN known.id IS NOT NULL THEN
                    jsonb_build_object('status', known.status, 'cycle', known.cycle, 'version', known.version) END,
                jsonb_build_object('status', 'pending', 'cycle', letter.cycle, 'category', letter.category));
        SELECT * INTO known FROM redrive.dead_letters WHERE id = letter.id;
    END IF;
    -- An answer to an older cycle is nobody's alert any more.
    alerts := CASE WHEN known.cycle = letter.cycle THEN known.alert_count ELSE 0 END;
    pipeline := known.pipeline;
    status := known.status;
    cycle := known.cycle;
    replay_count := known.replay_count;
    blocked_by := known.blocked_by;
    orphaned := known.orphaned;
END
$$;

REVOKE ALL ON FUNCTION redrive.put_run, redrive.count_alert, redrive.put_dead_letter FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redrive.put_run, redrive.count_alert, redrive.put_dead_letter TO redrive_app;
