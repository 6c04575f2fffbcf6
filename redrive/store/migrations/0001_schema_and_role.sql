-- The schema, and the role that the application works as. The role owns nothing: it cannot change tables, and row level
-- security binds it. Nothing is granted to it by default: each migration that makes a table grants what it needs.

CREATE SCHEMA IF NOT EXISTS redrive;
REVOKE ALL ON SCHEMA redrive FROM PUBLIC;

-- Roles belong to the whole cluster, the migrations' lock to one database: another database may be doing this now.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'redrive_app') THEN
        CREATE ROLE redrive_app NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
END
$$;

DO $$
BEGIN
    GRANT redrive_app TO CURRENT_USER;
EXCEPTION
    WHEN unique_violation THEN NULL;
    -- The role was made by somebody else: it is enough that they granted it to us.
    WHEN insufficient_privilege THEN
        IF NOT pg_has_role(CURRENT_USER, 'redrive_app', 'MEMBER') THEN
            RAISE EXCEPTION 'an administrator must run: GRANT redrive_app TO %', quote_ident(CURRENT_USER)
                USING ERRCODE = 'insufficient_privilege';
        END IF;
END
$$;

GRANT USAGE ON SCHEMA redrive TO redrive_app;
