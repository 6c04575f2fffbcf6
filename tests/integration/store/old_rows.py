"""Rows of each kind that were over, or are open, since a hundred days ago: $1 is the tenant, $2 how many."""
# ruff: noqa: S608

from typing import Final

OLD: Final = "now() - interval '100 days'"
SEED: Final = {
    "runs": f"""
        INSERT INTO runs (run_id, tenant, pipeline, status, started_at, closed_at, updated_at)
        SELECT $1 || '-run-' || n, $1, 'p', 'SUCCESS', {OLD}, {OLD}, {OLD} FROM generate_series(1, $2::int) AS n""",
    "runs open": f"""
        INSERT INTO runs (run_id, tenant, pipeline, status, started_at, updated_at)
        SELECT $1 || '-open-' || n, $1, 'p', 'DLQ_PENDING', {OLD}, {OLD} FROM generate_series(1, $2::int) AS n""",
    "events": f"""
        WITH made AS (
            INSERT INTO events (id, tenant, dedupe_key, type, source, payload, run_id, received_at)
            SELECT $1 || '-event-' || n, $1, 'key-' || n, 't', 's', '{{}}', $1 || '-of-event-' || n, {OLD}
            FROM generate_series(1, $2::int) AS n RETURNING *
        ), projected AS (
            INSERT INTO event_projections
                (event_id, projector, tenant, status, attempt, run_id, started_at, completed_at)
            SELECT id, 'one', tenant, 'succeeded', 1, run_id, {OLD}, {OLD} FROM made
        )
        INSERT INTO runs (run_id, tenant, pipeline, status, idempotency_key, started_at, closed_at, updated_at)
        SELECT run_id, tenant, 'p', 'SUCCESS', dedupe_key, {OLD}, {OLD}, {OLD} FROM made""",
    "events open": f"""
        INSERT INTO events (id, tenant, dedupe_key, type, source, payload, run_id, received_at)
        SELECT $1 || '-waits-' || n, $1, 'waits-' || n, 't', 's', '{{}}', $1 || '-never-' || n, {OLD}
        FROM generate_series(1, $2::int) AS n""",
    "dead_events": f"""
        INSERT INTO dead_events (id, tenant, source_stream, source_message_id, origin, payload, category, error_type,
                                 error, attempts, status, last_attempt_at, mirrored_at, updated_at)
        SELECT $1 || '-dead-' || n, $1, 's', n::text, 'o', '', 'c', 'E', 'e', 1, 'discarded', {OLD}, {OLD}, {OLD}
        FROM generate_series(1, $2::int) AS n""",
    "dead_events open": f"""
        INSERT INTO dead_events (id, tenant, source_stream, source_message_id, origin, payload, category, error_type,
                                 error, attempts, status, last_attempt_at, mirrored_at, updated_at)
        SELECT $1 || '-dead-open-' || n, $1, 's', n::text, 'o', '', 'c', 'E', 'e', 1,
               CASE n % 3 WHEN 0 THEN 'pending' WHEN 1 THEN 'replaying' ELSE 'discarded' END, {OLD},
               CASE n % 3 WHEN 2 THEN NULL ELSE {OLD} END, {OLD} FROM generate_series(1, $2::int) AS n""",
    "dead_messages": f"""
        INSERT INTO dead_messages (tenant, message_id, kind, status, source_queue, original_queue, original_payload,
                                   error_reason, retry_count, max_retries, last_failed_at, updated_at)
        SELECT $1, gen_random_uuid(), 'exhausted', 'replayed', 'q', 'q', '', 'e', 3, 3, {OLD}, {OLD}
        FROM generate_series(1, $2::int) AS n""",
    "dead_messages open": f"""
        INSERT INTO dead_messages (tenant, message_id, kind, status, source_queue, original_queue, original_payload,
                                   error_reason, retry_count, max_retries, last_failed_at, updated_at)
        SELECT $1, gen_random_uuid(), 'exhausted', CASE n % 2 WHEN 0 THEN 'pending' ELSE 'replaying' END, 'q', 'q', '',
               'e', 3, 3, {OLD}, {OLD} FROM generate_series(1, $2::int) AS n""",
    "bulk": f"""
        WITH made AS (
            INSERT INTO bulk_operations (tenant, id, verb, status, options, action_hash, plan_hash, request_id, total,
                                         canary, requested_by, reason, started_at, finished_at)
            SELECT $1, 'bulk-' || n, 'replay', 'DONE', '{{}}', 'a', 'p', 'r', 2, 0, 'ada', 'why', {OLD}, {OLD}
            FROM generate_series(1, $2::int) AS n RETURNING *)
        INSERT INTO bulk_items (tenant, bulk_id, position, letter_id, run_id, step, version, status)
        SELECT tenant, id, place, 'l', 'r', 's', 1, 'APPLIED' FROM made, generate_series(1, 2) AS place""",
    "bulk open": f"""
        INSERT INTO bulk_operations (tenant, id, verb, status, options, action_hash, plan_hash, request_id, total,
                                     canary, requested_by, reason, started_at)
        SELECT $1, 'open-' || n, 'replay', (ARRAY['RUNNING', 'PAUSED', 'STOPPING'])[n % 3 + 1], '{{}}', 'a', 'p', 'r',
               0, 0, 'ada', 'why', {OLD} FROM generate_series(1, $2::int) AS n""",
    "approvals": f"""
        INSERT INTO approvals
            (tenant, plan_hash, plan, reason, requested_by, requested_person, requested_at, expires_at)
        SELECT $1, 'plan-' || n, '{{}}', 'why', 'ada', 'ada', {OLD}, {OLD} + interval '1 hour'
        FROM generate_series(1, $2::int) AS n""",
    "approvals open": f"""
        INSERT INTO approvals
            (tenant, plan_hash, plan, reason, requested_by, requested_person, requested_at, expires_at)
        SELECT $1, 'waits-' || n, '{{}}', 'why', 'ada', 'ada', {OLD}, now() + interval '1 hour'
        FROM generate_series(1, $2::int) AS n""",
}
TABLES: Final = {
    "runs": "runs",
    "events": "events",
    "dead_events": "dead_events",
    "dead_messages": "dead_messages",
    "bulk": "bulk_operations",
    "approvals": "approvals",
}
