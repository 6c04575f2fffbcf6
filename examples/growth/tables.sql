-- The platform's own tables. Each has the key that makes its projector repeatable.
CREATE SCHEMA IF NOT EXISTS growth;

CREATE TABLE IF NOT EXISTS growth.mission_instances (
    id text PRIMARY KEY,
    mission_id text NOT NULL,
    user_id text NOT NULL,
    progress int NOT NULL DEFAULT 0
);

CREATE TABLE IF NOT EXISTS growth.mission_stages (
    mission_instance_id text NOT NULL REFERENCES growth.mission_instances ON DELETE CASCADE,
    stage_id text NOT NULL,
    status text NOT NULL,
    suggestion text NOT NULL,
    PRIMARY KEY (mission_instance_id, stage_id)
);

CREATE TABLE IF NOT EXISTS growth.qscore_latest (
    user_id text NOT NULL,
    signal_id text NOT NULL,
    score int NOT NULL,
    completed_at timestamptz NOT NULL,
    PRIMARY KEY (user_id, signal_id)
);

CREATE TABLE IF NOT EXISTS growth.mission_service_sessions (
    service_id text NOT NULL,
    external_id text NOT NULL,
    mission_instance_id text NOT NULL,
    status text NOT NULL,
    UNIQUE (service_id, external_id)
);

CREATE TABLE IF NOT EXISTS growth.artifacts (
    mission_instance_id text NOT NULL,
    service_id text NOT NULL,
    external_id text NOT NULL,
    type text NOT NULL,
    content text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (mission_instance_id, service_id, external_id, type)
);
