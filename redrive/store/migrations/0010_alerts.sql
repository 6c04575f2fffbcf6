-- Failures that an alert held back are told by a follow-up when its time is over, also if no other comes. What the last
-- one told, and of which alert, is kept: a follow-up that is tried again tells the same.
ALTER TABLE redrive.alerts ADD COLUMN told bigint NOT NULL DEFAULT 0, ADD COLUMN told_of timestamptz;

-- Count one more failure that looks alike: how many since the last alert when a new one is due, else 0; -1 for the first
-- that is held back, which has to see to the follow-up.
CREATE OR REPLACE FUNCTION redrive.count_alert(whose text, mark text, quiet interval) RETURNS integer LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    alert redrive.alerts;
BEGIN
    INSERT INTO redrive.alerts AS known (tenant, fingerprint, count, sent_at) VALUES (whose, mark, 1, '-infinity')
        ON CONFLICT (tenant, fingerprint) DO UPDATE SET count = known.count + 1
        RETURNING * INTO alert;
    IF alert.sent_at > now() - quiet THEN
        RETURN CASE WHEN alert.count = 1 THEN -1 ELSE 0 END;
    END IF;
    UPDATE redrive.alerts SET count = 0, sent_at = now() WHERE tenant = whose AND fingerprint = mark;
    RETURN alert.count;
END
$$;
