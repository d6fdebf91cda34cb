"""SQLAlchemy over three drivers: reflection, inspection, queries it writes itself; and pandas on top of it."""

from __future__ import annotations

from collections.abc import Iterator

import pandas
import pytest
import sqlalchemy as sa

from tests.server.clients.questions import (
    COUNT,
    OLDER_THAN_65,
    PEOPLE,
    REFUSED,
    STATE_ROWS,
    STATES,
    TABLES,
    UNKNOWN_COLUMN,
)
from tests.server.connection import Address


@pytest.fixture(params=["psycopg", "psycopg2", "pg8000"])
def engine(served: Address, request: pytest.FixtureRequest) -> Iterator[sa.Engine]:
    made = sa.create_engine(served.url(f"postgresql+{request.param}"))
    yield made
    made.dispose()


def test_inspection(engine: sa.Engine) -> None:
    inspector = sa.inspect(engine)
    assert "public" in inspector.get_schema_names()
    assert set(inspector.get_table_names()) == TABLES
    assert inspector.get_view_names() == []
    columns = {column["name"]: column for column in inspector.get_columns("people")}
    assert isinstance(columns["age"]["type"], sa.INTEGER)
    assert isinstance(columns["height"]["type"], sa.NUMERIC)
    assert isinstance(columns["born"]["type"], sa.TIMESTAMP)
    inspector.get_pk_constraint("people")
    inspector.get_foreign_keys("visits")
    inspector.get_indexes("people")
    inspector.get_table_comment("people")


def test_reflection_and_queries(engine: sa.Engine) -> None:
    metadata = sa.MetaData()
    metadata.reflect(engine)
    assert set(metadata.tables) == TABLES
    people, gifts = metadata.tables["people"], metadata.tables["Gifts"]
    with engine.connect() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(people)).scalar() == PEOPLE
        older = sa.select(sa.func.count()).select_from(people).where(people.c.age > 65)
        assert connection.execute(older).scalar() == OLDER_THAN_65
        grouped = (
            sa.select(people.c.state, sa.func.count().label("n"))
            .where(people.c.age > 40)
            .group_by(people.c.state)
            .order_by(people.c.state)
        )
        assert [tuple(row) for row in connection.execute(grouped)] == STATE_ROWS
        nested = sa.select(sa.func.max(grouped.subquery().c.n))
        assert connection.execute(nested).scalar() == 9
        among = sa.select(sa.func.count()).select_from(people).where(people.c.state.in_(["CA", "NY"]))
        assert connection.execute(among).scalar() == 32
        assert connection.execute(sa.select(sa.func.count(gifts.c.Amount))).scalar() is not None


def test_errors(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        with pytest.raises(sa.exc.ProgrammingError), connection.begin_nested():
            connection.execute(sa.text(UNKNOWN_COLUMN))
        assert connection.execute(sa.text(COUNT)).scalar() == PEOPLE


def test_refusals(engine: sa.Engine, dpsql_only: None) -> None:
    with (
        engine.connect() as connection,
        pytest.raises(sa.exc.ProgrammingError, match="would return rows of private table"),
    ):
        connection.execute(sa.text(REFUSED))


def test_pandas(engine: sa.Engine) -> None:
    frame = pandas.read_sql(STATES, engine)
    assert list(frame.columns) == ["state", "n"]
    assert list(frame.itertuples(index=False, name=None)) == STATE_ROWS
    older = pandas.read_sql(sa.text("SELECT count(*) AS n FROM people WHERE age > :age"), engine, params={"age": 65})
    assert older["n"].tolist() == [OLDER_THAN_65]
    portions = list(pandas.read_sql(STATES, engine, chunksize=2))
    assert [len(portion) for portion in portions] == [2, 1]
    assert len(pandas.read_sql_table("states", engine)) == 3
