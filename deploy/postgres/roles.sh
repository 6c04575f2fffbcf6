#!/bin/sh
# Make one login for Temporal and one for Redrive, each with a password of its own. The postgres image runs this once,
# while it sets up an empty data directory.
set -eu

psql --set=ON_ERROR_STOP=1 --no-psqlrc --username="${POSTGRES_USER:-postgres}" --dbname=postgres \
  --set=temporal_password="$TEMPORAL_DB_PASSWORD" --set=redrive_password="$REDRIVE_DB_PASSWORD" <<'SQL'
-- Temporal's own tool makes Temporal's two databases.
CREATE ROLE temporal LOGIN CREATEDB PASSWORD :'temporal_password';
CREATE ROLE redrive LOGIN PASSWORD :'redrive_password';
-- The first migration would make this role, but the login may not make roles.
CREATE ROLE redrive_app NOLOGIN;
GRANT redrive_app TO redrive;
CREATE DATABASE redrive OWNER redrive;
REVOKE ALL ON DATABASE redrive FROM PUBLIC;
SQL
