"""What an engine remembers to answer quickly is what it would compute again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from dpsql.answering import rest as module
from dpsql.answering.answer import Answer
from dpsql.answering.answer_store import StoredAnswer, decode, encode
from dpsql.answering.dataset import Dataset
from dpsql.answering.lru import MOST, WeightedLru
from dpsql.answering.open_dataset import open_dataset
from dpsql.errors import OperationalError
from dpsql.release import QuerySettings
from dpsql.tables import NoisyTable
from dpsql.types import Value
from tests import toy

BY_STATE = "SELECT state, COUNT(*) AS n, AVG(income) AS income FROM people GROUP BY state"
ABOVE = "SELECT COUNT(*) FROM people WHERE income > (SELECT AVG(income) FROM people)"


@pytest.fixture
def dataset(clinic: Path) -> Iterator[Dataset]:
    found = open_dataset(toy.write_policy(clinic.parent, users=("alice",)))
    yield found
    found.close()


def ask(dataset: Dataset, sql: str, *, fresh: bool = False) -> Answer:
    return dataset.answer(dataset.compile(sql, (), QuerySettings()), user="alice", sql=sql, fresh=fresh)


@pytest.mark.parametrize("sql", [BY_STATE, ABOVE])
def test_a_remembered_answer_is_the_one_that_would_be_computed(dataset: Dataset, sql: str) -> None:
    first, remembered = ask(dataset, sql), ask(dataset, sql)
    dataset._rest._answers.clear()
    computed = ask(dataset, sql)
    assert first.table == remembered.table == computed.table
    assert first.margins == remembered.margins == computed.margins
    assert computed.charged == remembered.charged


def test_a_new_answer_takes_the_place_of_a_remembered_one(dataset: Dataset) -> None:
    first = ask(dataset, BY_STATE)
    bought = ask(dataset, BY_STATE, fresh=True)
    assert bought.table != first.table  # three averages of many digits
    assert ask(dataset, BY_STATE).table == bought.table


def test_an_answer_that_another_process_has_bought_takes_its_place(dataset: Dataset, clinic: Path) -> None:
    first = ask(dataset, BY_STATE)
    with closing(open_dataset(clinic.parent / "dpsql.toml")) as other:
        bought = ask(other, BY_STATE, fresh=True)
    assert bought.table != first.table
    assert ask(dataset, BY_STATE).table == bought.table


def test_an_answer_belongs_to_who_got_it(dataset: Dataset) -> None:
    ask(dataset, BY_STATE)
    ask(dataset, "SELECT state, COUNT(*) AS n FROM people GROUP BY state").table.rows.clear()
    assert len(ask(dataset, "SELECT state, COUNT(*) AS n FROM people GROUP BY state").table.rows) == 3


def test_long_texts_and_many_rows_are_not_remembered(dataset: Dataset) -> None:
    for sql in (
        f"SELECT COUNT(*), '{'x' * module.SMALL_TEXT}!' FROM people",
        "SELECT age, COUNT(*) FROM people GROUP BY age",
    ):
        first = ask(dataset, sql)
        assert not dataset._rest._answers
        assert ask(dataset, sql).table == first.table


def test_what_is_free_to_ask_does_not_fill_the_memory(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """EXPLAIN of many cells costs nothing, and a compiled query of 80,000 of them takes five megabytes."""
    monkeypatch.setattr(dataset._releases._releases, "_room", 200_000)
    for income in range(20):
        sql = f"SELECT age, state, smoker, COUNT(*) FROM people WHERE income > {income} GROUP BY age, state, smoker"
        release = dataset.compile(sql, (), QuerySettings())
        dataset.preview(release, "alice")
    assert 0 < len(dataset._releases._releases) < 10
    assert dataset.compile(sql, (), QuerySettings()) is release


def test_the_newest_are_remembered_while_there_is_room() -> None:
    found: WeightedLru[str, int] = WeightedLru(lambda _, weight: weight, 100)
    for name in "abcde":
        found.put(name, 30)
    assert [name for name in "abcde" if found.get(name)] == ["c", "d", "e"]
    found.get("c")
    found.put("d", 50)  # in place of a lighter one
    assert [name for name in "abcde" if found.get(name)] == ["c", "d"]
    found.put("huge", 101)
    assert len(found) == 0
    for number in range(MOST + 5):
        found.put(str(number), 0)
    assert len(found) == MOST and found.get("4") is None and found.get("5") is not None


@pytest.mark.parametrize(
    "keys",
    [
        (),
        ((),),
        (("CA", 1, True, None, 0.5), ("NY", 2, False, None, -1.5)),
        ((date(2020, 1, 31), Decimal("1.50")), (datetime(2020, 1, 31, 12), None)),
        (("plain",), (date(2020, 2, 29),)),
        tuple((number, str(number)) for number in range(-150, 150)),
        tuple((number % 2 == 0, None, number) for number in range(2**40, 2**40 + 150)),
        tuple((2**63 + number,) for number in range(150)),
    ],
)
def test_a_stored_answer_is_read_as_it_was_written(keys: tuple[tuple[Value, ...], ...]) -> None:
    sums = (np.arange(len(keys), dtype=np.int64) - 2**61,)
    stored = decode(encode(StoredAnswer("name", NoisyTable(keys, sums))))
    assert stored.instance == "name"
    assert stored.table.keys == keys
    assert [list(map(type, key)) for key in stored.table.keys] == [list(map(type, key)) for key in keys]
    assert stored.table.sums[0].tolist() == sums[0].tolist()


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_many_numbers_are_stored_in_as_few_bytes_as_hold_them(width: int) -> None:
    most = 2 ** (8 * width - 1) - 1
    for ends, held in (((-most - 1, most), width), ((-most - 2, 0), 2 * width), ((0, most + 1), 2 * width)):
        if held <= 8:
            sums = np.asarray([*ends, *range(100)], dtype=np.int64)
            written = encode(StoredAnswer("name", NoisyTable(((),) * len(sums), (sums,))))
            assert json.loads(written)["sums"][0]["width"] == held
            assert decode(written).table.sums[0].tolist() == sums.tolist()


def test_what_json_cannot_hold_is_not_read_back() -> None:
    with pytest.raises(OperationalError, match="cannot be read"):
        decode(b'{"instance":"name","keys":[[["a list"]]],"sums":[]}')
