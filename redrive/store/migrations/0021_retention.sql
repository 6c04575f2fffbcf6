-- Retention. What is over and old is deleted in small batches by functions of the owner: the application's role cannot delete
-- from these tables itself. Each works for the tenant that the transaction names, and what is open is out of its reach, whatever
-- it is asked for.

-- Everything that a tenant's transaction may call works for this tenant.
CREATE FUNCTION redrive.own_tenant() RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    tenant text := current_setting('redrive.tenant', true);
BEGIN
    IF coalesce(tenant, '') IN ('', '*') THEN
        RAISE EXCEPTION 'a purge is for one tenant: set redrive.tenant' USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN tenant;
END
$$;

-- Look at the next rows of a kind, the oldest first, and delete those that were over `before` then. The next batch begins after
-- the last row that was seen: what stays is looked at once in a purge. Both counts are exact; what somebody has locked stays.
CREATE FUNCTION redrive.purge(
    kind text, before timestamptz, batch integer, after_at timestamptz, after_id text, who text, dry_run boolean,
    OUT seen integer, OUT deleted integer, OUT last_at timestamptz, OUT last_id text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $purge$
DECLARE
    whose text := redrive.own_tenant();
    -- The table, the column of the time, the id and its type, and what makes a row one that may go. $1 is the tenant, $2 before.
    rule text[] := CASE kind
        WHEN 'runs' THEN ARRAY['runs', 'started_at', 'run_id', 'text', $$
            closed_at < $2
            AND NOT EXISTS (SELECT FROM redrive.dead_letters AS letter
                            WHERE letter.tenant = $1 AND letter.run_id = old.run_id)
            -- The row tells that the event's run was started: without it a duplicate would start it again.
            AND NOT EXISTS (SELECT FROM redrive.events AS event WHERE event.tenant = $1
                            AND event.dedupe_key = old.idempotency_key AND event.run_id = old.run_id)$$]
        WHEN 'dead_letters' THEN ARRAY['dead_letters', 'last_failed_at', 'id', 'text', $$
            status IN ('replayed', 'resolved', 'discarded') AND updated_at < $2
            AND NOT EXISTS (SELECT FROM redrive.runs AS run WHERE run.run_id = old.run_id AND run.closed_at IS NULL)
            AND NOT EXISTS (SELECT FROM redrive.bulk_operations AS bulk JOIN redrive.bulk_items AS item
                                ON item.tenant = bulk.tenant AND item.bulk_id = bulk.id
                            WHERE bulk.tenant = $1 AND bulk.finished_at IS NULL AND item.letter_id = old.id)$$]
        WHEN 'refused_messages' THEN ARRAY['refused_messages', 'last_at', 'dead_letter', 'text', $$
            last_at < $2 AND NOT EXISTS (SELECT FROM redrive.dead_letters AS letter WHERE letter.id = old.dead_letter)$$]
        -- One that has failures to tell of waits for its follow-up.
        WHEN 'alerts' THEN ARRAY['alerts', 'sent_at', 'fingerprint', 'text', 'sent_at < $2 AND count = 0']
        WHEN 'events' THEN ARRAY['events', 'received_at', 'id', 'text', $$
            received_at < $2
            AND EXISTS (SELECT FROM redrive.runs AS run WHERE run.run_id = old.run_id AND run.closed_at < $2)
            AND NOT EXISTS (SELECT FROM redrive.event_projections AS made WHERE made.event_id = old.id
                            AND (made.status IN ('failed', 'replaying') OR made.completed_at >= $2))
            AND NOT EXISTS (SELECT FROM redrive.event_replays AS again LEFT JOIN redrive.runs AS run USING (run_id)
                            WHERE again.event_id = old.id AND (again.created_at >= $2
                                OR run.run_id IS NOT NULL AND run.closed_at IS NULL))$$]
        WHEN 'dead_events' THEN ARRAY['dead_events', 'last_attempt_at', 'id', 'text', $$
            status IN ('replayed', 'discarded') AND updated_at < $2 AND mirrored_at IS NOT NULL$$]
        WHEN 'dead_messages' THEN ARRAY['dead_messages', 'last_failed_at', 'message_id', 'uuid', $$
            status IN ('replayed', 'discarded') AND updated_at < $2$$]
        WHEN 'bulk' THEN ARRAY['bulk_operations', 'started_at', 'id', 'text', $$
            status IN ('STOPPED', 'DONE') AND finished_at < $2$$]
        WHEN 'approvals' THEN ARRAY['approvals', 'requested_at', 'plan_hash', 'text', $$
            requested_at < $2 AND expires_at < now()
            AND NOT EXISTS (SELECT FROM redrive.bulk_operations AS bulk WHERE bulk.tenant = $1
                            AND bulk.plan_hash = old.plan_hash AND bulk.finished_at IS NULL)$$]
        END;
    -- An operation goes as a whole, with its items: half of them would be a wrong count.
    size integer := CASE WHEN kind = 'bulk' THEN 1 ELSE least(greatest(batch, 1), 10000) END;
    page text;
    gone text[];
BEGIN
    IF rule IS NULL THEN
        RAISE EXCEPTION 'there is nothing of the kind % to purge', quote_literal(kind);
    END IF;
    before := least(before, now());
    after_at := coalesce(after_at, '-infinity');
    after_id := coalesce(after_id, CASE WHEN rule[4] = 'uuid' THEN '00000000-0000-0000-0000-000000000000' ELSE '' END);
    -- One purge of a tenant at a time: two would wait for each other's rows.
    PERFORM pg_advisory_xact_lock(hashtextextended('redrive.purge ' || whose, 0));
    page := format('FROM redrive.%1$I AS old WHERE tenant = $1 AND %2$I < $2 AND (%2$I, %3$I) ', VARIADIC rule);
    EXECUTE format('WITH page AS (SELECT %2$I AS at, %3$I AS id %5$s > ($3, $4::%4$s) ORDER BY %2$I, %3$I LIMIT $5)
                    SELECT (SELECT count(*) FROM page), at, id::text FROM page ORDER BY page.at DESC, page.id DESC LIMIT 1',
                   rule[1], rule[2], rule[3], rule[4], page)
        INTO seen, last_at, last_id USING whose, before, after_at, after_id, size;
    seen := coalesce(seen, 0);
    deleted := 0;
    IF seen = 0 THEN
        RETURN;
    END IF;
    EXECUTE format('WITH going AS (SELECT %3$I AS id %5$s > ($3, $4::%4$s) AND (%2$I, %3$I) <= ($5, $6::%4$s) AND (%6$s) %7$s)
                    SELECT array_agg(id::text) FROM going',
                   rule[1], rule[2], rule[3], rule[4], page, rule[5],
                   CASE WHEN dry_run THEN '' ELSE 'FOR UPDATE OF old SKIP LOCKED' END)
        INTO gone USING whose, before, after_at, after_id, last_at, last_id;
    deleted := coalesce(cardinality(gone), 0);
    IF dry_run OR deleted = 0 THEN
        RETURN;
    END IF;
    IF kind = 'events' THEN
        DELETE FROM redrive.event_projections WHERE event_id = ANY (gone);
        DELETE FROM redrive.event_replays WHERE event_id = ANY (gone);
    ELSIF kind = 'bulk' THEN
        DELETE FROM redrive.bulk_items AS item WHERE item.tenant = whose AND item.bulk_id = ANY (gone);
    END IF;
    EXECUTE format('DELETE FROM redrive.%I WHERE tenant = $1 AND %I = ANY ($2::%s[])', rule[1], rule[3], rule[4])
        USING whose, gone;
    INSERT INTO redrive.audit_log (tenant, action, actor, reason, after)
    VALUES (whose, 'purged', who, 'retention', jsonb_build_object('kind', kind, 'count', deleted, 'before', before));
END
$purge$;

-- The audit log loses its oldest lines, and says so: a cut is a line of its own, with the number and the hash of the last line
-- before it, so that the chain can be proved from there on. Half of what a cut names may still be there: the next call goes on.
CREATE INDEX audit_log_cuts ON redrive.audit_log (tenant, number) WHERE action = 'audit_cut';

CREATE FUNCTION redrive.cut_audit(keep interval, batch integer, who text, dry_run boolean, OUT deleted bigint)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    whose text := redrive.own_tenant();
    floor CONSTANT interval := '30 days';
    through bigint;
    last bigint;
BEGIN
    -- Whoever has the application's role must not be able to do away with the traces of today.
    IF keep < floor THEN
        RAISE EXCEPTION 'the audit log is kept for at least %', floor USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('redrive.purge ' || whose, 0));
    SELECT (cut.after ->> 'through')::bigint INTO through FROM redrive.audit_log AS cut
        WHERE cut.tenant = whose AND cut.action = 'audit_cut' ORDER BY cut.number DESC LIMIT 1;
    through := coalesce(through, 0);
    IF dry_run OR NOT EXISTS (SELECT FROM redrive.audit_log WHERE tenant = whose AND number <= through) THEN
        last := coalesce(
            (SELECT number - 1 FROM redrive.audit_log
             WHERE tenant = whose AND number > through AND at >= now() - keep ORDER BY number LIMIT 1),
            (SELECT number FROM redrive.audit_heads WHERE tenant = whose), 0);
        -- Lines about cuts alone are not worth another cut.
        IF last > through AND EXISTS (SELECT FROM redrive.audit_log
                                      WHERE tenant = whose AND number <= last AND action <> 'audit_cut') THEN
            IF NOT dry_run THEN
                INSERT INTO redrive.audit_log (tenant, action, actor, reason, after)
                SELECT whose, 'audit_cut', who, 'retention', jsonb_build_object(
                    'through', entry.number, 'hash', encode(entry.hash, 'hex'), 'before', now() - keep)
                FROM redrive.audit_log AS entry WHERE entry.tenant = whose AND entry.number = last;
            END IF;
            through := last;
        END IF;
    END IF;
    IF dry_run THEN
        SELECT count(*) INTO deleted FROM redrive.audit_log WHERE tenant = whose AND number <= through;
        RETURN;
    END IF;
    DELETE FROM redrive.audit_log WHERE tenant = whose AND number IN (
        SELECT number FROM redrive.audit_log WHERE tenant = whose AND number <= through ORDER BY number
        LIMIT least(greatest(batch, 1), 10000));
    GET DIAGNOSTICS deleted = ROW_COUNT;
END
$$;

-- Only these functions, which work as the owner, say that something was purged or cut.
CREATE POLICY not_of_purges ON redrive.audit_log AS RESTRICTIVE FOR INSERT
    WITH CHECK (action NOT IN ('purged', 'audit_cut'));

-- Who has rows: found in the indexes from tenant to tenant, without reading the rows between.
CREATE FUNCTION redrive.tenants_with_rows() RETURNS SETOF text LANGUAGE plpgsql STABLE SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['runs', 'dead_letters', 'refused_messages', 'alerts', 'events', 'dead_events',
                                'dead_messages', 'bulk_operations', 'approvals', 'audit_heads'] LOOP
        RETURN QUERY EXECUTE format(
            'WITH RECURSIVE found AS (
                 (SELECT tenant FROM redrive.%1$I ORDER BY tenant LIMIT 1)
                 UNION ALL
                 SELECT (SELECT tenant FROM redrive.%1$I WHERE tenant > found.tenant ORDER BY tenant LIMIT 1)
                 FROM found WHERE found.tenant IS NOT NULL)
             SELECT tenant FROM found WHERE tenant IS NOT NULL', name);
    END LOOP;
END
$$;

REVOKE ALL ON FUNCTION redrive.own_tenant, redrive.purge, redrive.cut_audit, redrive.tenants_with_rows FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redrive.purge, redrive.cut_audit, redrive.tenants_with_rows TO redrive_app;
