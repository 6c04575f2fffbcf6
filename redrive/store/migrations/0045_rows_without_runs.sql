-- For the sweep: all rows of runs that are open, and those of keys, page by page. It reads them all and writes only what it finds.
CREATE INDEX runs_unclosed ON redrive.runs (updated_at, run_id) WHERE closed_at IS NULL;
CREATE INDEX idempotency_keys_unclosed ON redrive.idempotency_keys (updated_at, key, tenant) WHERE status = 'processing';
DROP INDEX redrive.runs_open;
DROP INDEX redrive.idempotency_keys_open;

-- A row says that its run is under way, and Temporal does not know the run: its end is known to nobody, and the row goes. The row of
-- an event's run stays, closed: without it, a duplicate of the event would start the run again.
CREATE FUNCTION redrive.forget_run(given_run text, seen timestamptz) RETURNS void LANGUAGE plpgsql
    SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    whose text := redrive.own_tenant();
BEGIN
    UPDATE redrive.runs AS old SET status = 'FAILED', closed_at = now(), updated_at = now()
    WHERE tenant = whose AND run_id = given_run AND closed_at IS NULL AND updated_at = seen
        AND EXISTS (SELECT FROM redrive.events AS event WHERE event.tenant = whose
                    AND event.dedupe_key = old.idempotency_key AND event.run_id = old.run_id);
    DELETE FROM redrive.runs
    WHERE tenant = whose AND run_id = given_run AND closed_at IS NULL AND updated_at = seen
        AND NOT EXISTS (SELECT FROM redrive.dead_letters AS letter WHERE letter.tenant = whose AND letter.run_id = given_run
                        AND letter.status IN ('pending', 'replaying'));
END
$$;
REVOKE ALL ON FUNCTION redrive.forget_run FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redrive.forget_run TO redrive_app;
