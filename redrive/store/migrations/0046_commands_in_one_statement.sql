-- The head of a tenant's audit log is locked from a line's insert to the end of its transaction. As one statement each, these hold it
-- as long as the database needs; in a transaction of several statements, until a busy worker sends the next one.

-- An operator's command is accepted: the record, the run's row and the line in the audit log say so. False, and nothing is changed,
-- if the command was answered before, or if the record says something else than the command's sender was told.
CREATE FUNCTION redrive.accept_command(given jsonb) RETURNS boolean LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    letter text := given ->> 'dead_letter';
    -- A command of a run has the run's revision. One that is carried out without a run, which is gone, has none.
    number bigint := (given ->> 'revision')::bigint;
    next_status text := given ->> 'status';
    run_status text := given ->> 'run_status';
    known redrive.dead_letters;
BEGIN
    PERFORM set_config('redrive.tenant', given ->> 'tenant', true);
    PERFORM pg_advisory_xact_lock(hashtextextended(letter, 0));
    SELECT * INTO known FROM redrive.dead_letters WHERE id = letter;
    IF known.status IS DISTINCT FROM 'pending' OR known.cycle <> (given ->> 'cycle')::integer
        OR (known.blocked_by IS NOT NULL AND NOT (given ->> 'even_if_blocked')::boolean)
        OR (next_status = 'replaying' AND known.replay_count >= (given ->> 'max_replays')::integer)
        OR EXISTS (SELECT FROM redrive.audit_log WHERE tenant = given ->> 'tenant' AND dead_letter = letter
                   AND request_id = given ->> 'request_id'
                   AND action IN ('replay_requested', 'resolved', 'discarded', 'restarted', 'refused')) THEN
        RETURN false;
    END IF;
    IF next_status = 'replaying' THEN
        UPDATE redrive.dead_letters SET replay_count = replay_count + 1, replayed_by = given ->> 'actor', replayed_at = now(),
            replay_mode = given ->> 'mode', replay_reason = given ->> 'reason', orphaned = false,
            status = next_status, command_request_id = given ->> 'request_id', revision = coalesce(number, revision),
            version = version + 1, updated_at = now()
        WHERE id = letter;
    ELSE
        UPDATE redrive.dead_letters SET resolution = given ->> 'verb', resolved_by = given ->> 'actor', resolved_at = now(),
            resolution_reason = given ->> 'reason',
            status = next_status, command_request_id = given ->> 'request_id', revision = coalesce(number, revision),
            version = version + 1, updated_at = now()
        WHERE id = letter;
    END IF;
    UPDATE redrive.runs SET status = run_status, closed_at = CASE WHEN run_status <> 'RUNNING' THEN now() END,
        revision = coalesce(number, revision), updated_at = now()
    WHERE run_id = given ->> 'run_id' AND revision < coalesce(number, revision + 1);
    INSERT INTO redrive.audit_log (tenant, action, dead_letter, run_id, step, actor, reason, request_id, before, after)
    VALUES (given ->> 'tenant', given ->> 'action', letter, given ->> 'run_id', given ->> 'step', given ->> 'actor',
            given ->> 'reason', given ->> 'request_id',
            jsonb_build_object('status', known.status, 'cycle', known.cycle, 'version', known.version), given -> 'after');
    RETURN true;
END
$$;

-- How a replay ended, or that an open dead letter waits for an earlier one, or that its run has ended. Returns the record's status;
-- null, and nothing is changed, if there is no record yet, or one from before what this follows.
CREATE FUNCTION redrive.put_outcome(given jsonb) RETURNS text LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    letter text := given ->> 'dead_letter';
    -- A repair has no revision: it is of a run that has ended.
    number bigint := (given ->> 'revision')::bigint;
    next_status text := given ->> 'status';
    blocking text := given ->> 'blocked_by';
    run_status text := given ->> 'run_status';
    known redrive.dead_letters;
BEGIN
    PERFORM set_config('redrive.tenant', given ->> 'tenant', true);
    PERFORM pg_advisory_xact_lock(hashtextextended(letter, 0));
    SELECT * INTO known FROM redrive.dead_letters WHERE id = letter;
    IF known.id IS NULL OR known.revision < (given ->> 'after')::bigint THEN
        RETURN NULL;
    END IF;
    IF known.revision >= number THEN
        RETURN known.status;
    END IF;
    IF known.status NOT IN ('pending', 'replaying')
        OR (known.status = next_status AND known.blocked_by IS NOT DISTINCT FROM blocking) THEN
        -- The same again, in a workflow task that is done again: the run's next report follows this one.
        UPDATE redrive.dead_letters SET revision = number WHERE id = letter AND revision < number;
        RETURN known.status;
    END IF;
    UPDATE redrive.dead_letters SET status = next_status, blocked_by = blocking, resolution = given ->> 'resolution',
        resolution_reason = given ->> 'reason', revision = coalesce(number, revision), version = version + 1,
        updated_at = now()
    WHERE id = letter;
    UPDATE redrive.runs SET status = run_status, closed_at = CASE WHEN run_status = 'CANCELED' THEN now() END,
        revision = coalesce(number, revision), updated_at = now()
    WHERE run_id = given ->> 'run_id' AND run_status IS NOT NULL AND closed_at IS NULL
        AND revision < coalesce(number, revision + 1);
    INSERT INTO redrive.audit_log (tenant, action, dead_letter, run_id, step, actor, request_id, before, after)
    VALUES (given ->> 'tenant', 'replay_outcome', letter, given ->> 'run_id', given ->> 'step', 'redrive',
            given ->> 'request_id',
            jsonb_build_object('status', known.status, 'cycle', known.cycle, 'version', known.version),
            jsonb_build_object('status', next_status, 'ending', given -> 'ending', 'blocked_by', blocking));
    RETURN next_status;
END
$$;

-- How a run ended: its row, that of its key, and its labels. Nothing if there is no run to tell of.
CREATE FUNCTION redrive.put_finished(given jsonb) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM redrive.put_run(given);
    IF jsonb_typeof(given -> 'labels') = 'object' THEN
        PERFORM redrive.put_labels(given ->> 'tenant', given ->> 'run_id', given -> 'labels');
    END IF;
END
$$;

REVOKE ALL ON FUNCTION redrive.accept_command, redrive.put_outcome, redrive.put_finished FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redrive.accept_command, redrive.put_outcome, redrive.put_finished TO redrive_app;
