-- Idempotency keys, which outlive Temporal's memory of a run, and the stored results of modules that ask for it.

CREATE TABLE redrive.idempotency_keys (
    tenant text NOT NULL,
    key text NOT NULL,
    domain text NOT NULL,
    user_id text,
    generation integer NOT NULL,
    run_id text NOT NULL,
    pipeline text NOT NULL,
    status text NOT NULL CHECK (status IN ('processing', 'completed', 'failed')),
    run_status text,
    -- Empty: any request may have the key (it was reset, or its run was started without one).
    request_hash text NOT NULL,
    response jsonb,
    error text,
    expires_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, key)
);
CREATE INDEX idempotency_keys_by_time ON redrive.idempotency_keys (tenant, created_at DESC, key DESC);
-- For the sweep: what has expired, and whose run nobody has heard of for a while.
CREATE INDEX idempotency_keys_expired ON redrive.idempotency_keys (expires_at);
CREATE INDEX idempotency_keys_open ON redrive.idempotency_keys (updated_at) WHERE status = 'processing';

CREATE TABLE redrive.step_results (
    tenant text NOT NULL,
    key text NOT NULL,
    run_id text NOT NULL,
    step text NOT NULL,
    -- Which execution may write the result: the newest that has begun.
    cycle integer NOT NULL,
    attempt integer NOT NULL,
    output jsonb,
    is_done boolean NOT NULL DEFAULT false,
    expires_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, key)
);
CREATE INDEX step_results_expired ON redrive.step_results (expires_at);

ALTER TABLE redrive.idempotency_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE redrive.step_results ENABLE ROW LEVEL SECURITY;
-- Deleting is writing: what reads the rows of all tenants must not delete any.
CREATE POLICY reading ON redrive.idempotency_keys FOR SELECT USING (redrive.sees(tenant));
CREATE POLICY adding ON redrive.idempotency_keys FOR INSERT WITH CHECK (redrive.is_own(tenant));
CREATE POLICY changing ON redrive.idempotency_keys FOR UPDATE USING (redrive.is_own(tenant));
CREATE POLICY removing ON redrive.idempotency_keys FOR DELETE USING (redrive.is_own(tenant));
CREATE POLICY reading ON redrive.step_results FOR SELECT USING (redrive.sees(tenant));
CREATE POLICY adding ON redrive.step_results FOR INSERT WITH CHECK (redrive.is_own(tenant));
CREATE POLICY changing ON redrive.step_results FOR UPDATE USING (redrive.is_own(tenant));
CREATE POLICY removing ON redrive.step_results FOR DELETE USING (redrive.is_own(tenant));
GRANT SELECT, INSERT, UPDATE, DELETE ON redrive.idempotency_keys, redrive.step_results TO redrive_app;

-- Take a key for a run, or say what is there: 'claimed', 'known' or 'free'. A key is free when its run is over and its
-- time is up, or it FAILED and `free_failed` says so: the caller then asks for the next generation, whose run id it has
-- to compute. A key whose run is open never expires.
CREATE FUNCTION redrive.claim_key(
    given jsonb, free_failed boolean, inline_limit integer,
    OUT verdict text, OUT generation integer, OUT run_id text, OUT status text, OUT request_hash text,
    OUT run_status text, OUT response jsonb, OUT response_size integer, OUT error text
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    wish redrive.idempotency_keys := jsonb_populate_record(NULL::redrive.idempotency_keys, given);
    known redrive.idempotency_keys;
BEGIN
    -- No waiting for the disk: whoever claims a key again that a crash of the server took back computes the same run id,
    -- and finds the run.
    PERFORM set_config('redrive.tenant', wish.tenant, true), set_config('synchronous_commit', 'off', true);
    -- One statement: of any number of callers one inserts, and the others see its row.
    INSERT INTO redrive.idempotency_keys AS old
        (tenant, key, domain, user_id, generation, run_id, pipeline, status, request_hash, expires_at)
    VALUES (wish.tenant, wish.key, wish.domain, wish.user_id, wish.generation, wish.run_id, wish.pipeline,
            'processing', wish.request_hash, wish.expires_at)
    ON CONFLICT (tenant, key) DO UPDATE SET
        generation = excluded.generation, run_id = excluded.run_id, pipeline = excluded.pipeline,
        status = 'processing', run_status = NULL, request_hash = excluded.request_hash, response = NULL, error = NULL,
        expires_at = excluded.expires_at, created_at = now(), updated_at = now()
    WHERE (excluded.generation = old.generation + 1
           AND (old.status <> 'processing' AND old.expires_at <= now() OR old.run_status = 'FAILED' AND free_failed))
       OR (excluded.generation = old.generation AND old.status = 'processing' AND old.request_hash = '')
    RETURNING * INTO known;
    verdict := 'claimed';
    IF known.key IS NULL THEN
        SELECT * INTO known FROM redrive.idempotency_keys WHERE tenant = wish.tenant AND key = wish.key;
        verdict := CASE
            WHEN known.status <> 'processing' AND known.expires_at <= now()
                OR known.run_status = 'FAILED' AND free_failed
                OR known.request_hash = '' AND known.status = 'processing'
                -- Deleted in between: asking again finds nothing in the way.
                OR known.key IS NULL THEN 'free'
            ELSE 'known' END;
    END IF;
    -- Of a free key, the generation before the one to ask for.
    generation := coalesce(known.generation, -1);
    IF verdict = 'free' AND known.request_hash = '' AND known.status = 'processing' THEN
        generation := generation - 1;
    END IF;
    run_id := coalesce(known.run_id, '');
    status := coalesce(known.status, 'processing');
    request_hash := coalesce(known.request_hash, '');
    run_status := known.run_status;
    error := known.error;
    response_size := octet_length(known.response::text);
    IF response_size <= inline_limit THEN
        response := known.response;
    END IF;
END
$$;

-- How the run of a key ended. The row is made when a start could not make it. A word of an older generation is late.
CREATE FUNCTION redrive.settle_key(given jsonb) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fresh redrive.idempotency_keys := jsonb_populate_record(NULL::redrive.idempotency_keys, given);
BEGIN
    PERFORM set_config('redrive.tenant', fresh.tenant, true);
    fresh.status := CASE WHEN fresh.run_status = 'SUCCESS' THEN 'completed' ELSE 'failed' END;
    INSERT INTO redrive.idempotency_keys AS old
        (tenant, key, domain, user_id, generation, run_id, pipeline, status, run_status, request_hash, response, error,
         expires_at)
    VALUES (fresh.tenant, fresh.key, fresh.domain, fresh.user_id, fresh.generation, fresh.run_id, fresh.pipeline,
            fresh.status, fresh.run_status, fresh.request_hash, fresh.response, fresh.error, fresh.expires_at)
    ON CONFLICT (tenant, key) DO UPDATE SET
        generation = excluded.generation, run_id = excluded.run_id, pipeline = excluded.pipeline,
        status = excluded.status, run_status = excluded.run_status, response = excluded.response,
        error = excluded.error, expires_at = excluded.expires_at, updated_at = now(),
        -- What the run was started with is the truth, whoever wrote the row.
        request_hash = coalesce(nullif(excluded.request_hash, ''), old.request_hash)
    WHERE excluded.generation >= old.generation;
END
$$;

-- The run of a key is open. The row is made when a start could not make it.
CREATE FUNCTION redrive.open_key(given jsonb) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fresh redrive.idempotency_keys := jsonb_populate_record(NULL::redrive.idempotency_keys, given);
BEGIN
    INSERT INTO redrive.idempotency_keys
        (tenant, key, domain, user_id, generation, run_id, pipeline, status, request_hash, expires_at)
    VALUES (fresh.tenant, fresh.key, fresh.domain, fresh.user_id, fresh.generation, fresh.run_id, fresh.pipeline,
            'processing', fresh.request_hash, fresh.expires_at)
    ON CONFLICT DO NOTHING;
END
$$;

-- What becomes of a run that failed is its key's as well, in the same transaction: it was discarded or canceled, or goes
-- on after a word about its end. The way to success writes the key itself.
CREATE FUNCTION redrive.follow_run() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE redrive.idempotency_keys SET
        status = CASE WHEN NEW.closed_at IS NULL THEN 'processing' ELSE 'failed' END,
        run_status = CASE WHEN NEW.closed_at IS NOT NULL THEN NEW.status END,
        response = NULL,
        error = CASE WHEN NEW.closed_at IS NOT NULL THEN coalesce((
            SELECT format('step %L was %s by %s: %s', step, status, resolved_by, resolution_reason)
            FROM redrive.dead_letters WHERE run_id = NEW.run_id AND resolved_by IS NOT NULL
            ORDER BY resolved_at DESC LIMIT 1), 'the run ended ' || NEW.status) END,
        updated_at = now()
    WHERE tenant = NEW.tenant AND key = NEW.idempotency_key AND run_id = NEW.run_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER follow_run AFTER UPDATE OF status ON redrive.runs FOR EACH ROW
    WHEN (NEW.idempotency_key IS NOT NULL AND NEW.status <> OLD.status AND NEW.status <> 'SUCCESS')
    EXECUTE FUNCTION redrive.follow_run();

-- As before, and: a word that was heard is the key's as well. `claim` is what the row of the key needs.
CREATE OR REPLACE FUNCTION redrive.put_run(given jsonb) RETURNS void LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
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

-- A step of a module that asked for it begins: the stored result, if there is one. Without one, `may_run` tells whether
-- this execution is the newest: an older one that is still at it (a zombie) may not.
CREATE FUNCTION redrive.begin_step(
    given jsonb, OUT is_done boolean, OUT may_run boolean, OUT output jsonb
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    fresh redrive.step_results := jsonb_populate_record(NULL::redrive.step_results, given);
    known redrive.step_results;
BEGIN
    PERFORM set_config('redrive.tenant', fresh.tenant, true);
    INSERT INTO redrive.step_results AS old (tenant, key, run_id, step, cycle, attempt, expires_at)
    VALUES (fresh.tenant, fresh.key, fresh.run_id, fresh.step, fresh.cycle, fresh.attempt, fresh.expires_at)
    ON CONFLICT (tenant, key) DO UPDATE SET
        cycle = excluded.cycle, attempt = excluded.attempt, expires_at = excluded.expires_at, updated_at = now()
    WHERE NOT old.is_done AND (old.cycle, old.attempt) <= (excluded.cycle, excluded.attempt)
    RETURNING * INTO known;
    may_run := known.key IS NOT NULL;
    IF NOT may_run THEN
        SELECT * INTO known FROM redrive.step_results WHERE tenant = fresh.tenant AND key = fresh.key;
    END IF;
    is_done := coalesce(known.is_done, false);
    output := known.output;
END
$$;

-- Its result: stored if no newer execution has begun. The answer is the result that stands, if one does.
CREATE FUNCTION redrive.finish_step(given jsonb, OUT is_done boolean, OUT output jsonb) LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    fresh redrive.step_results := jsonb_populate_record(NULL::redrive.step_results, given);
    known redrive.step_results;
BEGIN
    PERFORM set_config('redrive.tenant', fresh.tenant, true);
    UPDATE redrive.step_results SET is_done = true, output = fresh.output, updated_at = now()
    WHERE tenant = fresh.tenant AND key = fresh.key AND NOT is_done
        AND (cycle, attempt) = (fresh.cycle, fresh.attempt);
    SELECT * INTO known FROM redrive.step_results WHERE tenant = fresh.tenant AND key = fresh.key;
    is_done := coalesce(known.is_done, false);
    output := known.output;
END
$$;

REVOKE ALL ON FUNCTION redrive.claim_key, redrive.settle_key, redrive.open_key, redrive.follow_run, redrive.begin_step,
    redrive.finish_step FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redrive.claim_key, redrive.settle_key, redrive.open_key, redrive.follow_run, redrive.begin_step,
    redrive.finish_step TO redrive_app;
