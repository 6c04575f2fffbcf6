#!/bin/sh
# Create Temporal's two databases and update their schemas to this version. Safe to run again: what exists is kept.
# The connection comes from SQL_PLUGIN, SQL_HOST, SQL_PORT, SQL_USER and SQL_PASSWORD; outside of the image, TEMPORAL_SCHEMAS
# says where the schema files of the same version are.
set -eu

schemas=${TEMPORAL_SCHEMAS:-/etc/temporal/schema/postgresql/v12}

set_up() {
  temporal-sql-tool --database "$1" create
  temporal-sql-tool --database "$1" setup-schema --version 0.0
  temporal-sql-tool --database "$1" update-schema --schema-dir "$schemas/$2/versioned"
}

set_up temporal temporal
set_up temporal_visibility visibility
