-- Messages of which nobody can tell whose they are go to a quarantine: rows of a tenant whose name no tenant can have, so
-- that row level security shows them only to who reads all tenants: owners. And of a message that is too large to be
-- taken, only the beginning is kept.

-- How many bytes the message had, where only its beginning is kept.
ALTER TABLE redrive.dead_events ADD COLUMN full_size bigint;
ALTER TABLE redrive.dead_messages ADD COLUMN full_size bigint;

ALTER TABLE redrive.api_tokens ADD CONSTRAINT not_in_quarantine CHECK (tenant <> '(quarantine)');
ALTER TABLE redrive.members ADD CONSTRAINT not_in_quarantine CHECK (tenant <> '(quarantine)');

CREATE OR REPLACE FUNCTION redrive.put_dead_event(given jsonb, content bytea) RETURNS boolean LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    dead redrive.dead_events := jsonb_populate_record(NULL::redrive.dead_events, given);
BEGIN
    PERFORM set_config('redrive.tenant', dead.tenant, true);
    INSERT INTO redrive.dead_events (id, tenant, source_stream, source_message_id, origin, payload, full_size, event_type,
                                     dedupe_key, category, error_type, error, attempts)
    VALUES (dead.id, dead.tenant, dead.source_stream, dead.source_message_id, dead.origin, content, dead.full_size,
            dead.event_type, dead.dedupe_key, dead.category, dead.error_type, dead.error, dead.attempts)
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

-- An owner says whose a message in quarantine is. A policy lets nobody move a row from one tenant to another, so the
-- owner of the tables does, out of quarantine alone; both chains of the audit log tell.
CREATE FUNCTION redrive.note_assignment(about text, new_tenant text, who text, why text, request text) RETURNS void
    LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO redrive.audit_log (tenant, action, dead_letter, actor, reason, request_id, before, after)
    VALUES ('(quarantine)', 'assigned', about, who, why, request, NULL, jsonb_build_object('tenant', new_tenant));
    INSERT INTO redrive.audit_log (tenant, action, dead_letter, actor, reason, request_id, before, after)
    VALUES (new_tenant, 'assigned', about, who, why, request, jsonb_build_object('tenant', '(quarantine)'), NULL);
$$;

CREATE FUNCTION redrive.assign_dead_event(about text, new_tenant text, who text, why text, request text)
    RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('redrive.tenant', true) IS DISTINCT FROM '(quarantine)' OR new_tenant !~ '\A[a-z0-9-]{1,64}\Z' THEN
        RAISE EXCEPTION 'a message leaves the quarantine for a tenant, and nothing else' USING ERRCODE = '42501';
    END IF;
    UPDATE redrive.dead_events SET tenant = new_tenant, version = version + 1, updated_at = now()
    WHERE id = about AND tenant = '(quarantine)' AND status = 'pending';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM redrive.note_assignment(about, new_tenant, who, why, request);
    RETURN true;
END
$$;

CREATE FUNCTION redrive.assign_dead_message(about uuid, new_tenant text, who text, why text, request text)
    RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('redrive.tenant', true) IS DISTINCT FROM '(quarantine)' OR new_tenant !~ '\A[a-z0-9-]{1,64}\Z' THEN
        RAISE EXCEPTION 'a message leaves the quarantine for a tenant, and nothing else' USING ERRCODE = '42501';
    END IF;
    UPDATE redrive.dead_messages SET tenant = new_tenant, updated_at = now()
    WHERE message_id = about AND tenant = '(quarantine)' AND status = 'pending';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM redrive.note_assignment('message-' || about, new_tenant, who, why, request);
    RETURN true;
END
$$;

REVOKE ALL ON FUNCTION redrive.note_assignment, redrive.assign_dead_event, redrive.assign_dead_message FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redrive.assign_dead_event, redrive.assign_dead_message TO redrive_app;
