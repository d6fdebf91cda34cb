"""How many counts within ±100 a budget of (1, 1e-6) pays for, asked of a real ledger until it is empty."""

from __future__ import annotations

from pathlib import Path

import pytest

import dpsql
from tests import toy
from tests.accounting import table

README = Path(__file__).resolve().parents[1] / "accuracy" / "README.md"


@pytest.mark.parametrize(
    ("accounting", "key_delta", "counts"),
    [("zcdp", None, 120), ("zcdp", "1e-8", 127), ("basic", None, 33)],
)
def test_so_many_counts_within_a_hundred(clinic: Path, accounting: str, key_delta: str | None, counts: int) -> None:
    policy = toy.write_policy(clinic.parent, epsilon="1.0", accounting=accounting)
    if key_delta is not None:
        policy.write_text(policy.read_text().replace("[privacy]\n", f"[privacy]\nkey_delta = {key_delta}\n"))
    with dpsql.connect(policy, user="alice") as connection, connection.cursor() as cursor:
        cursor.execute("SET dpsql.margin = 100")
        for number in range(counts):
            cursor.execute(f"SELECT COUNT(*) FROM people WHERE income > {number}")
            assert cursor.margins == (100,)
        with pytest.raises(dpsql.Error) as refusal:
            cursor.execute("SELECT COUNT(*) FROM people WHERE income < 7")
    assert refusal.value.sqlstate == "53400"


@pytest.mark.parametrize(("pure", "counts"), [(False, 1), (True, 3)])
def test_so_many_counts_within_ten(clinic: Path, pure: bool, counts: int) -> None:
    policy = toy.write_policy(clinic.parent, epsilon="1.0", pure=True)
    with dpsql.connect(policy, user="alice") as connection, connection.cursor() as cursor:
        cursor.execute("SET dpsql.margin = 10")
        cursor.execute(f"SET dpsql.pure = {pure}")
        for number in range(counts):
            cursor.execute(f"SELECT COUNT(*) FROM people WHERE income > {number}")
            assert cursor.margins == (10,)
        for kind in ("on", "off"):
            cursor.execute(f"SET dpsql.pure = {kind}")
            with pytest.raises(dpsql.Error) as refusal:
                cursor.execute("SELECT COUNT(*) FROM people WHERE income < 7")
            assert refusal.value.sqlstate == "53400"


def test_the_table_in_the_documents_is_what_the_script_prints() -> None:
    assert "\n".join(table()) in README.read_text()
