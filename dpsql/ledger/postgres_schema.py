"""The schema `dpsql_ledger` of a PostgreSQL database. Triggers keep even its owner from changing existing rows."""

from __future__ import annotations

from dpsql.ledger.schema import (
    APPEND_ONLY,
    DEPARTED,
    FORMAT,
    IN_ORDER,
    NOT_GROWING,
    NOT_IN_FORCE,
    PROTECTION_SINCE,
    PURE_SINCE,
    TABLES,
    Types,
    books,
    failures,
    moves,
    protections,
    pure,
    refusals,
)

SCHEMA_NAME = "dpsql_ledger"

# Compared byte by byte, whatever the database's own collation.
_TYPES = Types(text='text COLLATE "C"', whole="bigint", binary="bytea", by_key="", is_whole="")

_ATTEMPTS = """
-- Which attempt made a charge: one whose acknowledgement was lost is recognised, and not made twice.
CREATE TABLE attempts (
    id uuid PRIMARY KEY,
    charge bigint NOT NULL REFERENCES charges
);
"""

_FORMATS = f"""
CREATE TABLE formats (format bigint PRIMARY KEY);
INSERT INTO formats VALUES ({FORMAT});
"""


def _function(name: str, body: str) -> str:
    return f"""
CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, {SCHEMA_NAME}, pg_temp
AS $$ BEGIN {body} RETURN NEW; END $$;
"""


_ONLY_GROWING = _function(
    "only_growing", f"IF TG_OP = 'DELETE' OR {NOT_GROWING} THEN RAISE EXCEPTION 'nothing is refunded'; END IF;"
)

_UNDER_PROTECTION = _function(
    "under_protection",
    f"IF {NOT_IN_FORCE.format(differs='DISTINCT FROM')}"
    " THEN RAISE EXCEPTION 'the ledger protects other units'; END IF;",
)


def _in_order(table: str) -> str:
    return _function(
        f"{table}_in_order",
        f"IF NEW.number <> (SELECT COALESCE(MAX(number), 0) + 1 FROM {table})"
        f" THEN RAISE EXCEPTION '{table} is append-only'; END IF;",
    )


def _functions() -> str:
    functions = [
        _function("only_added_to", "RAISE EXCEPTION '% is append-only', TG_TABLE_NAME;"),
        _ONLY_GROWING,
        _UNDER_PROTECTION,
        _function(
            "end_with_departure",
            f"IF (SELECT event FROM moves ORDER BY number DESC LIMIT 1) = '{DEPARTED}'"
            " THEN RAISE EXCEPTION 'the ledger was moved'; END IF;",
        ),
    ]
    functions += [_in_order(table) for table in IN_ORDER]
    return "".join(functions)


def _trigger(name: str, when: str, table: str, function: str) -> str:
    each = "STATEMENT" if when.endswith("TRUNCATE") else "ROW"
    return f"CREATE TRIGGER {name} {when} ON {table} FOR EACH {each} EXECUTE FUNCTION {function}();\n"


def _triggers() -> str:
    guards = dict.fromkeys((*APPEND_ONLY, "attempts", "formats"), "only_added_to") | {"accounts": "only_growing"}
    ending = _trigger("end_with_departure", "BEFORE INSERT", "charges", "end_with_departure")
    return "".join([*map(_guarded, guards, guards.values()), ending, _CHARGED_UNDER_PROTECTION])


def _guarded(table: str, guard: str = "only_added_to") -> str:
    triggers = _trigger("never_changed", "BEFORE UPDATE OR DELETE", table, guard)
    triggers += _trigger("never_emptied", "BEFORE TRUNCATE", table, "only_added_to")
    if table in IN_ORDER:
        triggers += _trigger("in_order", "BEFORE INSERT", table, f"{table}_in_order")
    return triggers


_CHARGED_UNDER_PROTECTION = _trigger("under_protection", "BEFORE INSERT", "charges", "under_protection")


_ALL_TABLES = ", ".join((*TABLES, "attempts", "formats"))

# Runs in the caller's transaction, with the schema in its search path. No other role may read it: it holds queries.
CREATE = f"""
{books(_TYPES)}
{refusals(_TYPES)}
{moves(_TYPES)}
{pure(_TYPES)}
{protections(_TYPES)}
{failures(_TYPES)}
{_ATTEMPTS}
{_FORMATS}
{_functions()}
{_triggers()}
REVOKE ALL ON SCHEMA {SCHEMA_NAME} FROM PUBLIC;
REVOKE ALL ON {_ALL_TABLES} FROM PUBLIC;
"""

# Roles that may charge may also read and write the new tables.
_GRANT_NEW = """
DO $$ DECLARE proxy regrole; BEGIN
    FOR proxy IN SELECT grantee FROM pg_class, aclexplode(relacl)
        WHERE oid = 'charges'::regclass AND privilege_type = 'INSERT' AND grantee NOT IN (0, relowner)
    LOOP EXECUTE format('GRANT SELECT, INSERT ON protections, failures, retries TO %s', proxy); END LOOP;
END $$;
"""

_UPGRADES = {
    PURE_SINCE: f"{pure(_TYPES)}{_ONLY_GROWING}",
    PROTECTION_SINCE: "".join(
        (
            protections(_TYPES),
            failures(_TYPES),
            _UNDER_PROTECTION,
            *map(_in_order, ("protections", "failures")),
            *map(_guarded, ("protections", "failures", "retries")),
            _CHARGED_UNDER_PROTECTION,
            "REVOKE ALL ON protections, failures, retries FROM PUBLIC;",
            _GRANT_NEW,
        )
    ),
}


def upgrade_from(found: int) -> str:
    """The statements that upgrade a ledger from an older format. Only the owner of the tables may run them."""
    steps = "".join(script for since, script in _UPGRADES.items() if found < since)
    return f"{steps}INSERT INTO formats VALUES ({FORMAT});"


# Only for a copy that was never charged.
DISCARD = f"""
DROP TABLE IF EXISTS {_ALL_TABLES};
DROP FUNCTION IF EXISTS only_added_to, only_growing, end_with_departure, under_protection,
    {", ".join(f"{table}_in_order" for table in IN_ORDER)};
"""
