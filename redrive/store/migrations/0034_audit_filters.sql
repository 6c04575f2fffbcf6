-- The audit log by run, and what people did: its pages leave out what the system recorded itself.
CREATE INDEX audit_log_by_run ON redrive.audit_log (tenant, run_id, number) WHERE run_id IS NOT NULL;
CREATE INDEX audit_log_people ON redrive.audit_log (tenant, number) WHERE actor <> 'redrive';
CREATE INDEX audit_log_people_by_time ON redrive.audit_log (at DESC, tenant DESC, number DESC) WHERE actor <> 'redrive';

-- Runs by the correlation id that their callers gave; a run without one has its own id there, and no entry here.
CREATE INDEX runs_by_correlation ON redrive.runs (tenant, correlation_id) WHERE correlation_id <> run_id;
