"""Changes to PostgreSQL's system catalog, in the twin's database only: what users see, and what they may not call.

PostgreSQL calls a built-in function by its OID without reading its catalog entry, so CREATE OR REPLACE has no effect
on it. Instead it is renamed, and a new function gets its name. Views that use the old one keep it until they are
redefined. No real right depends on this: PostgreSQL checks rights without calling functions by name.
"""

from __future__ import annotations

from collections.abc import Iterator

from psycopg import sql

# Tools check privileges before they show a table. To users every declared table is readable (through dpsql), so these
# functions report SELECT wherever the user has REFERENCES, which marks the declared tables.
_INQUIRIES = ("has_table_privilege", "has_any_column_privilege", "has_column_privilege")

# Lists of sessions: a user sees only their own. The first function says whose a session is.
_SESSIONS = ("pg_stat_get_activity", "pg_lock_status", "pg_stat_get_progress_info")

# Functions that can fill shared disk or memory, or that reveal the sessions of others.
_FORBIDDEN = (
    r"lo_.*|loread|lowrite",
    r"pg_(try_)?advisory_(xact_)?lock(_shared)?",
    r"pg_notify|pg_export_snapshot|pg_logical_emit_message",
    r"pg_stat_get_backend_.*",
)

_RENAME_INQUIRIES = """
DO $body$
DECLARE
    old record;
    shown text;
BEGIN
    FOR old IN
        SELECT f.oid, f.proname, f.pronargs AS last, 'dpsql_real_' || f.proname AS real,
               pg_catalog.pg_get_function_identity_arguments(f.oid) AS arguments,
               (SELECT string_agg('$' || i, ', ' ORDER BY i) FROM generate_series(1, f.pronargs - 1) AS i) AS subject
        FROM pg_catalog.pg_proc AS f
        WHERE f.pronamespace = 'pg_catalog'::regnamespace AND f.proname = ANY ({names}) AND f.prolang = 12
    LOOP
        EXECUTE format('ALTER FUNCTION pg_catalog.%I(%s) RENAME TO %I', old.proname, old.arguments, old.real);
        EXECUTE format(
            'CREATE FUNCTION pg_catalog.%1$I(%2$s) RETURNS boolean STABLE PARALLEL SAFE '
            'RETURN pg_catalog.%3$I(%4$s, $%5$s) OR $%5$s ~* %6$L AND pg_catalog.%3$I(%4$s, ''REFERENCES'')',
            old.proname, old.arguments, old.real, old.subject, old.last, '(^|,)\\s*select\\s*(,|$)'
        );
    END LOOP;
END
$body$
"""

_RENAME_SESSIONS = """
DO $body$
DECLARE
    old record;
    dependent record;
BEGIN
    FOR old IN
        SELECT f.oid, f.proname, 'dpsql_real_' || f.proname AS real,
               pg_catalog.pg_get_function_identity_arguments(f.oid) AS identity,
               pg_catalog.pg_get_function_arguments(f.oid) AS arguments,
               CASE f.pronargs WHEN 0 THEN '' ELSE '$1' END AS passed
        FROM pg_catalog.pg_proc AS f
        JOIN unnest({names}::text[]) WITH ORDINALITY AS wanted (name, place) ON wanted.name = f.proname
        WHERE f.pronamespace = 'pg_catalog'::regnamespace AND f.prolang = 12
        ORDER BY wanted.place
    LOOP
        CREATE TEMPORARY TABLE dpsql_dependent ON COMMIT DROP AS
            SELECT r.ev_class::regclass::text AS name, pg_catalog.pg_get_viewdef(r.ev_class) AS definition
            FROM pg_catalog.pg_rewrite AS r WHERE r.ev_action::text ~ (' :funcid ' || old.oid || ' ');
        EXECUTE format('ALTER FUNCTION pg_catalog.%I(%s) RENAME TO %I', old.proname, old.identity, old.real);
        EXECUTE format(
            'CREATE FUNCTION pg_catalog.%1$I(%2$s) RETURNS SETOF record LANGUAGE sql VOLATILE SECURITY DEFINER '
            'SET search_path = pg_catalog, pg_temp AS %3$L',
            old.proname, old.arguments, format(
                'SELECT r.* FROM pg_catalog.%I(%s) AS r WHERE r.pid IN ('
                'SELECT s.pid FROM pg_catalog.dpsql_real_pg_stat_get_activity(NULL) AS s, pg_catalog.pg_authid AS me '
                'WHERE me.rolname = SESSION_USER AND (me.rolsuper OR s.usesysid = me.oid))',
                old.real, old.passed
            )
        );
        EXECUTE format('REVOKE EXECUTE ON FUNCTION pg_catalog.%I(%s) FROM PUBLIC', old.real, old.identity);
        FOR dependent IN SELECT * FROM dpsql_dependent LOOP
            EXECUTE format('CREATE OR REPLACE VIEW pg_catalog.%s AS %s', dependent.name, dependent.definition);
        END LOOP;
        DROP TABLE dpsql_dependent;
    END LOOP;
END
$body$
"""

# Settings made with ALTER ROLE … SET are shown to their owner only: view, condition for own rows, settings column.
_SETTINGS = (("pg_roles", "rolname", "rolconfig"), ("pg_user", "usename", "useconfig"))
_OWN_SETTINGS = """
DO $body$
BEGIN
    IF to_regclass('pg_catalog.dpsql_real_pg_db_role_setting') IS NULL THEN
        SET LOCAL allow_system_table_mods = on;
        ALTER TABLE pg_catalog.pg_db_role_setting RENAME TO dpsql_real_pg_db_role_setting;
        REVOKE SELECT ON pg_catalog.dpsql_real_pg_db_role_setting FROM PUBLIC;
        CREATE VIEW pg_catalog.pg_db_role_setting AS
            SELECT s.* FROM pg_catalog.dpsql_real_pg_db_role_setting AS s
            WHERE s.setrole = 0 OR EXISTS (
                SELECT FROM pg_catalog.pg_authid AS me
                WHERE me.rolname = SESSION_USER AND (me.rolsuper OR me.oid = s.setrole)
            );
        GRANT SELECT ON pg_catalog.pg_db_role_setting TO PUBLIC;
        SET LOCAL allow_system_table_mods = off;
    END IF;
END
$body$
"""
_HIDE_SETTINGS = """
DO $body$
DECLARE
    real text := rtrim(pg_catalog.pg_get_viewdef(('pg_catalog.' || {view})::regclass), ';');
    shown text;
BEGIN
    IF real !~ 'SESSION_USER' THEN
        SELECT string_agg(
            CASE attname WHEN {settings} THEN format('CASE WHEN %s THEN v.%I END AS %2$I', {own}, attname)
            ELSE format('v.%I', attname) END, ', ' ORDER BY attnum
        ) INTO shown
        FROM pg_catalog.pg_attribute WHERE attrelid = ('pg_catalog.' || {view})::regclass AND attnum > 0;
        EXECUTE format('CREATE OR REPLACE VIEW pg_catalog.%I AS SELECT %s FROM (%s) AS v', {view}, shown, real);
    END IF;
END
$body$
"""

# A session whose query runs in the engine is idle in the twin, which would ignore the signal. So the relay gets a
# notice that it recognises; it checks that both sessions belong to the same user.
CANCEL_NOTICE = "DP001"
_TELL_OF_CANCEL = """
DO $body$
BEGIN
    IF to_regprocedure('pg_catalog.dpsql_real_pg_cancel_backend(integer)') IS NULL THEN
        ALTER FUNCTION pg_catalog.pg_cancel_backend(integer) RENAME TO dpsql_real_pg_cancel_backend;
        CREATE FUNCTION pg_catalog.pg_cancel_backend(pid integer) RETURNS boolean LANGUAGE plpgsql STRICT
            SET client_min_messages = notice AS $function$
        BEGIN
            IF NOT pg_catalog.dpsql_real_pg_cancel_backend(pid) THEN
                RETURN false;
            END IF;
            RAISE NOTICE USING ERRCODE = {notice}, MESSAGE = pid::text;
            RETURN true;
        END
        $function$;
    END IF;
END
$body$
"""

# For the twin to know their types: the dataset answers queries that use them.
_INTERVAL_END = """
CREATE OR REPLACE FUNCTION pg_catalog.{name}(double precision) RETURNS double precision LANGUAGE plpgsql STABLE
AS $body$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '0A000', MESSAGE = {words},
        HINT = 'Write it around an aggregate of a private table.';
END
$body$
"""

_REVOKE_FUNCTIONS = """
DO $body$
DECLARE
    forbidden regprocedure;
BEGIN
    FOR forbidden IN
        SELECT oid FROM pg_catalog.pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND proname ~ {pattern}
    LOOP
        EXECUTE format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', forbidden);
    END LOOP;
END
$body$
"""

# MEDIAN, as in dpsql and other databases, so that statements with it can be described and run over constants.
_MIDDLE = """
CREATE OR REPLACE FUNCTION pg_catalog.dpsql_middle(float8[]) RETURNS float8 LANGUAGE sql IMMUTABLE
RETURN (SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY x) FROM unnest($1) AS x)
"""
_MEDIAN = """
CREATE OR REPLACE AGGREGATE pg_catalog.median(float8) (
    SFUNC = array_append, STYPE = float8[], FINALFUNC = dpsql_middle, INITCOND = '{{}}'
)
"""


def system_catalog_statements() -> Iterator[sql.Composed]:
    """Idempotent: a function that is renamed already is not found again. Language 12 is that of built-in functions."""
    yield sql.SQL("SET LOCAL search_path = pg_catalog").format()
    yield sql.SQL(_RENAME_INQUIRIES).format(names=sql.Literal(list(_INQUIRIES)))
    yield sql.SQL(_RENAME_SESSIONS).format(names=sql.Literal(list(_SESSIONS)))
    for name in ("dp_low", "dp_high"):
        words = sql.Literal(f"{name} needs a noisy number")
        yield sql.SQL(_INTERVAL_END).format(name=sql.Identifier(name), words=words)
    yield sql.SQL(_OWN_SETTINGS).format()
    for view, name, settings in _SETTINGS:
        yield sql.SQL(_HIDE_SETTINGS).format(
            view=sql.Literal(view), settings=sql.Literal(settings), own=sql.Literal(f"{name} = SESSION_USER")
        )
    yield sql.SQL(_MIDDLE).format()
    yield sql.SQL(_MEDIAN).format()
    yield sql.SQL(_TELL_OF_CANCEL).format(notice=sql.Literal(CANCEL_NOTICE))
    yield sql.SQL(_REVOKE_FUNCTIONS).format(pattern=sql.Literal(f"^({'|'.join(_FORBIDDEN)})$"))
    # Neither functions nor DO: a loop may be endless, and dpsql does not parse bodies.
    yield sql.SQL("REVOKE USAGE ON LANGUAGE sql, plpgsql FROM PUBLIC").format()
