-- For the sweep: runs that are under way, those longest without news first.
CREATE INDEX runs_open ON redrive.runs (updated_at) WHERE closed_at IS NULL AND status <> 'DLQ_PENDING';
