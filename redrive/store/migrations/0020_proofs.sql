-- Proof that a command went through the record. The transaction that accepts a command makes it; the run that is handed the
-- command asks for it before it obeys, so that a signal sent to the run by hand is refused.
ALTER TABLE redrive.dead_letters ADD COLUMN order_nonce uuid;

-- How many messages to a dead letter could not be read, or had no proof, and how many of them the audit log tells of: the
-- first ones each have a line, later ones share one.
CREATE TABLE redrive.refused_messages (
    tenant text NOT NULL,
    dead_letter text NOT NULL,
    count bigint NOT NULL,
    told bigint NOT NULL DEFAULT 0,
    -- The activity that counted last: its next try counts nothing.
    last_request text,
    last_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, dead_letter)
);
ALTER TABLE redrive.refused_messages ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON redrive.refused_messages USING (redrive.sees(tenant)) WITH CHECK (redrive.is_own(tenant));
GRANT SELECT, INSERT, UPDATE ON redrive.refused_messages TO redrive_app;
