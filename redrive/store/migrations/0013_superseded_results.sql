-- As before, and: whether the result that stands is that of this execution. One that is not has to say so.
-- Dropped first, for a function gains no column otherwise; workers of the last release read the columns that they know.
DROP FUNCTION redrive.finish_step(jsonb);
CREATE FUNCTION redrive.finish_step(
    given jsonb, OUT is_done boolean, OUT is_own boolean, OUT output jsonb
) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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
    is_own := is_done AND (known.cycle, known.attempt) = (fresh.cycle, fresh.attempt);
    output := known.output;
END
$$;
REVOKE ALL ON FUNCTION redrive.finish_step FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redrive.finish_step TO redrive_app;
