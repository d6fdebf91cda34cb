"""No way around the engine: what reads a declared table by a path that dpsql does not follow gets an error, no row.

The twin's tables are empty, so a row or a count that came from them would be a wrong answer that looks like one.
"""

from __future__ import annotations

import pytest

from tests.server.connection import Address, Connection
from tests.server.script import SETTINGS, Answer, encode

# Statements that may do what they do, and one that must be refused.
PATHS = {
    "a view": ["CREATE TEMP VIEW v AS SELECT count(*) AS n FROM people", "SELECT n FROM v"],
    "a view with a list": ["CREATE TEMP VIEW v (n) AS TABLE people", "SELECT count(*) FROM v"],
    "DO": ["DO 'BEGIN PERFORM count(*) FROM people; END'"],
    "DO with dollars": ["DO $$ BEGIN EXECUTE 'SELECT count(*) FROM people'; END $$"],
    "a function": [
        "CREATE FUNCTION pg_temp.f() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM people'",
        "SELECT pg_temp.f()",
    ],
    "a function with a body": [
        "CREATE FUNCTION pg_temp.f() RETURNS bigint LANGUAGE sql RETURN (SELECT count(*) FROM people)",
        "SELECT pg_temp.f()",
    ],
    "SQL in a string": ["SELECT query_to_xml('SELECT count(*) FROM people', true, true, '')"],
    "a table as XML": ["SELECT table_to_xml('people', true, true, '')"],
    "a schema as XML": ["SELECT schema_to_xml('public', true, true, '')"],
    "text search": ["SELECT * FROM ts_stat('SELECT to_tsvector(note) FROM people')"],
    "an unseen name": ['SELECT count(*) FROM U&"peopl\\0065"', 'SELECT age FROM U&"peopl\\0065"'],
    "the schema of the engine": ["SELECT age FROM main.people"],
    "TABLE": ["TABLE people"],
    "a row as a value": ["SELECT people FROM people"],
    "a lateral function": ["SELECT x FROM people, LATERAL (SELECT age AS x) AS t"],
    "a subquery in a list": ["SELECT ARRAY(SELECT age FROM people)"],
    "EXISTS": ["SELECT CASE WHEN EXISTS (SELECT 1 FROM people WHERE age > 200) THEN 1 ELSE 0 END"],
    "a common table": ["WITH t AS (SELECT * FROM people) SELECT * FROM t"],
    "a data-changing common table": ["WITH t AS (DELETE FROM people RETURNING age) SELECT * FROM t"],
    "INSERT": ["CREATE TEMP TABLE t (x int)", "INSERT INTO t SELECT age FROM people"],
    "UPDATE FROM": ["CREATE TEMP TABLE t (x int)", "UPDATE t SET x = age FROM people"],
    "DELETE USING": ["CREATE TEMP TABLE t (x int)", "DELETE FROM t USING people"],
    "MERGE": [
        "CREATE TEMP TABLE t (x int)",
        "MERGE INTO t USING people ON x = age WHEN NOT MATCHED THEN INSERT VALUES (age)",
    ],
    "SELECT INTO": ["SELECT age INTO TEMP t FROM people"],
    "CREATE TABLE LIKE": ["CREATE TEMP TABLE t (LIKE people)", "INSERT INTO t TABLE people"],
    "a rule": ["CREATE TEMP TABLE t (x int)", "CREATE RULE r AS ON SELECT TO t DO INSTEAD SELECT age FROM people"],
    "a policy": ["CREATE TEMP TABLE t (x int)", "CREATE POLICY p ON t USING (EXISTS (SELECT 1 FROM people))"],
    "inheritance": ["CREATE TEMP TABLE t () INHERITS (people)"],
    "a partition": ["CREATE TEMP TABLE t PARTITION OF people DEFAULT"],
    "a lock": ["BEGIN", "LOCK TABLE people"],
    "the file": ["SELECT pg_read_file('PG_VERSION')"],
    "a program": ["COPY (SELECT 1) TO PROGRAM 'true'"],
    "another role": ["SET ROLE bob"],
    "the superuser": ["SET SESSION AUTHORIZATION dpsql_admin"],
    "the internal schema": ["SELECT * FROM dpsql_internal.policy"],
    "dblink": ["CREATE EXTENSION dblink"],
    "EXPLAIN ANALYZE": ["EXPLAIN ANALYZE SELECT age FROM people"],
    "EXPLAIN EXECUTE": ["PREPARE q AS SELECT age FROM people", "EXPLAIN ANALYZE EXECUTE q"],
    "CREATE TABLE AS EXECUTE": ["PREPARE q AS SELECT age FROM people", "CREATE TEMP TABLE t AS EXECUTE q"],
    "DECLARE of a view": [
        "CREATE TEMP VIEW v AS SELECT age FROM people",
        "BEGIN",
        "DECLARE c CURSOR FOR TABLE v",
        "FETCH 1 FROM c",
    ],
    "COPY of a view": ["CREATE TEMP VIEW v AS SELECT age FROM people", "COPY (SELECT * FROM v) TO STDOUT"],
}


@pytest.mark.parametrize("statements", PATHS.values(), ids=PATHS.keys())
@pytest.mark.parametrize("line", ['Q "{}"', 'P "" "{}" ; B "" "" ; E "" ; S'], ids=["simple", "extended"])
def test_refused(served: Address, statements: list[str], line: str) -> None:
    with Connection(served, SETTINGS) as connection:
        for statement in statements:
            escaped = statement.replace("\\", "\\\\").replace('"', '\\"')
            connection.send(b"".join(encode(line.format(escaped))))
            answer = Answer(connection)
            while not (answer.events and answer.events[-1].short.startswith("Z")):
                answer.read()
        # The last is refused; if an earlier one was, then this one too, or it has nothing to read.
        assert any(short.startswith("E(") for short in answer.written), answer.written
        assert not any(short.startswith(("D(", "d(")) for short in answer.written), answer.written
