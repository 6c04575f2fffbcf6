-- A dead letter of a foreign workflow has no run's row: the workflow's id is used again, perhaps by another tenant.
-- Its step holds Temporal's run id, so that (tenant, run_id, step) stays unique.
ALTER FUNCTION redrive.put_run(jsonb) RENAME TO put_known_run;
CREATE FUNCTION redrive.put_run(given jsonb) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF jsonb_typeof(given) = 'object' THEN
        PERFORM redrive.put_known_run(given);
    END IF;
END
$$;
REVOKE ALL ON FUNCTION redrive.put_run FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redrive.put_run TO redrive_app;
