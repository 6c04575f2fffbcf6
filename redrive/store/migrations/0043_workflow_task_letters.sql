-- Open dead letters of workflows whose workflow tasks fail: the sweep that closes them reads them every minute.
CREATE INDEX dead_letters_workflow_tasks ON redrive.dead_letters (updated_at)
WHERE config ->> 'kind' = 'workflow_task' AND status IN ('pending', 'replaying');
