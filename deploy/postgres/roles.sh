#!/bin/sh
# Create one login for Temporal and three for Redrive, each with its own password. The postgres image runs this once,
# while it sets up an empty data directory.
set -eu

psql --set=ON_ERROR_STOP=1 --no-psqlrc --username="${POSTGRES_USER:-postgres}" --dbname=postgres \
  --set=temporal_password="$TEMPORAL_DB_PASSWORD" --set=redrive_password="$REDRIVE_DB_PASSWORD" \
  --set=app_password="$REDRIVE_APP_DB_PASSWORD" --set=console_password="$REDRIVE_CONSOLE_DB_PASSWORD" <<'SQL'
-- Temporal's own tool creates Temporal's two databases.
CREATE ROLE temporal LOGIN CREATEDB PASSWORD :'temporal_password';
-- Owns the tables: for migrations, members and the tokens of owners.
CREATE ROLE redrive LOGIN PASSWORD :'redrive_password';
-- The migrations would create these roles, but the owner may not create roles. Workers, bridges and the console use the
-- first; the console uses the second for sessions and tokens.
CREATE ROLE redrive_app LOGIN PASSWORD :'app_password';
CREATE ROLE redrive_console LOGIN PASSWORD :'console_password';
GRANT redrive_app, redrive_console TO redrive;
CREATE DATABASE redrive OWNER redrive;
REVOKE ALL ON DATABASE redrive FROM PUBLIC;
GRANT CONNECT ON DATABASE redrive TO redrive_app, redrive_console;
SQL
