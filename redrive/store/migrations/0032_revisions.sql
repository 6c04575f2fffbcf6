-- Only the run numbers its states: what it reports has a revision, and a row takes only a newer one. A write that is late, is
-- repeated, or comes from a worker that was long frozen changes nothing.
ALTER TABLE redrive.runs ADD COLUMN revision bigint NOT NULL DEFAULT 0;
ALTER TABLE redrive.dead_letters ADD COLUMN revision bigint NOT NULL DEFAULT 0;

-- Where a run is, and its key.
CREATE OR REPLACE FUNCTION redrive.put_run(given jsonb) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    run redrive.runs := jsonb_populate_record(NULL::redrive.runs, given);
BEGIN
    PERFORM set_config('redrive.tenant', run.tenant, true);
    run.closed_at := CASE WHEN run.status IN ('SUCCESS', 'FAILED', 'CANCELED') THEN now() END;
    INSERT INTO redrive.runs AS known (run_id, tenant, pipeline, status, failed_step, failed_cycle, category,
                                       correlation_id, idempotency_key, started_at, closed_at, revision)
    VALUES (run.run_id, run.tenant, run.pipeline, run.status, run.failed_step, run.failed_cycle, run.category,
            run.correlation_id, run.idempotency_key, run.started_at, run.closed_at, coalesce(run.revision, 0))
    ON CONFLICT (run_id) DO UPDATE SET
        status = excluded.status,
        closed_at = CASE WHEN known.status = excluded.status THEN known.closed_at ELSE excluded.closed_at END,
        failed_step = CASE WHEN excluded.status <> 'SUCCESS' THEN coalesce(excluded.failed_step, known.failed_step) END,
        failed_cycle = coalesce(excluded.failed_cycle, known.failed_cycle),
        category = CASE WHEN excluded.status <> 'SUCCESS' THEN coalesce(excluded.category, known.category) END,
        started_at = least(known.started_at, excluded.started_at),
        revision = excluded.revision,
        updated_at = now()
    WHERE run.revision IS NULL OR known.revision < run.revision;
    IF NOT FOUND OR jsonb_typeof(given -> 'claim') IS DISTINCT FROM 'object' THEN
        RETURN;
    END IF;
    IF run.closed_at IS NULL THEN
        PERFORM redrive.open_key(given -> 'claim');
    ELSE
        PERFORM redrive.settle_key(given -> 'claim');
    END IF;
END
$$;

-- A step was exhausted: its record is made, or gets one more cycle, with the run's row, the alert's count and the line in the
-- audit log. A failure that the record knows says that the run still waits there: a record that says otherwise is opened again.
CREATE OR REPLACE FUNCTION redrive.put_dead_letter(
    given jsonb, quiet interval,
    OUT is_new boolean, OUT alerts integer, OUT pipeline text, OUT status text, OUT cycle integer,
    OUT replay_count integer, OUT blocked_by text, OUT orphaned boolean
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    letter redrive.dead_letters := jsonb_populate_record(NULL::redrive.dead_letters, given);
    known redrive.dead_letters;
    entry jsonb := given -> 'entry';
    is_newer boolean;
    is_reopened boolean;
BEGIN
    PERFORM set_config('redrive.tenant', letter.tenant, true);
    -- The row may not be there yet: two tries of one write must be one after another all the same.
    PERFORM pg_advisory_xact_lock(hashtextextended(letter.id, 0));
    SELECT * INTO known FROM redrive.dead_letters WHERE id = letter.id;
    is_newer := known.id IS NULL OR known.revision < letter.revision;
    -- A workflow task that is done again reports the same failure with another revision.
    is_new := is_newer AND (known.id IS NULL OR known.cycle <> letter.cycle OR known.attempts <> letter.attempts
                            OR known.message <> letter.message);
    is_reopened := is_newer AND NOT is_new AND (known.status <> 'pending' OR known.orphaned);
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
            build_id, fingerprint, alert_count, revision)
        VALUES (
            letter.id, letter.tenant, letter.run_id, letter.step, letter.module, letter.pipeline, 'pending',
            letter.category, letter.error_type, letter.message, letter.stack, letter.attempts, letter.cycle,
            letter.first_failed_at, letter.last_failed_at, jsonb_build_array(entry), letter.payload, letter.config,
            letter.correlation_id, letter.idempotency_key, letter.build_id, letter.fingerprint, letter.alert_count,
            letter.revision)
        ON CONFLICT (id) DO UPDATE SET
            status = 'pending', category = excluded.category, error_type = excluded.error_type,
            message = excluded.message, stack = excluded.stack, attempts = excluded.attempts, cycle = excluded.cycle,
            first_failed_at = excluded.first_failed_at, last_failed_at = excluded.last_failed_at,
            failure_history = old.failure_history || excluded.failure_history,
            payload = excluded.payload, config = excluded.config, build_id = excluded.build_id,
            fingerprint = excluded.fingerprint, alert_count = excluded.alert_count, revision = excluded.revision,
            blocked_by = NULL, orphaned = false, command_request_id = NULL,
            resolution = NULL, resolved_by = NULL, resolved_at = NULL, resolution_reason = NULL,
            version = old.version + 1, updated_at = now();
    ELSIF is_newer THEN
        UPDATE redrive.dead_letters AS old SET
            status = 'pending', orphaned = false, command_request_id = NULL, revision = letter.revision,
            resolution = NULL, resolved_by = NULL, resolved_at = NULL, resolution_reason = NULL,
            version = old.version + is_reopened::integer, updated_at = now()
        WHERE id = letter.id;
    END IF;
    IF is_newer THEN
        PERFORM redrive.put_run(given -> 'run');
    END IF;
    IF is_new OR is_reopened THEN
        INSERT INTO redrive.audit_log (tenant, action, dead_letter, run_id, step, actor, before, after, request_id, reason)
        VALUES (letter.tenant, CASE WHEN is_new THEN 'dead_lettered' ELSE 'reopened' END,
                letter.id, letter.run_id, letter.step, 'redrive',
                CASE WHEN known.id IS NOT NULL THEN
                    jsonb_build_object('status', known.status, 'cycle', known.cycle, 'version', known.version) END,
                jsonb_build_object('status', 'pending', 'cycle', letter.cycle, 'category', letter.category),
                CASE WHEN is_reopened THEN known.command_request_id END,
                CASE WHEN is_reopened THEN 'the run is parked there still' END);
    END IF;
    IF is_newer THEN
        SELECT * INTO known FROM redrive.dead_letters WHERE id = letter.id;
    END IF;
    -- An answer to an older cycle is nobody's alert any more.
    alerts := CASE WHEN known.cycle = letter.cycle AND NOT (given ->> 'again')::boolean THEN known.alert_count ELSE 0 END;
    pipeline := known.pipeline;
    status := known.status;
    cycle := known.cycle;
    replay_count := known.replay_count;
    blocked_by := known.blocked_by;
    orphaned := known.orphaned;
END
$$;
