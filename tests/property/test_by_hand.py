"""`python -m tests.property` finds a planted error, and prints it small, as a grammar case."""

from __future__ import annotations

import pytest

from dpsql.lowering import steps
from dpsql.lowering.row_values import Rows
from dpsql.privacy.rules.aggregates import Statistic
from tests.property.__main__ import search


def test_a_planted_error_is_found_and_printed_as_a_grammar_case(monkeypatch: pytest.MonkeyPatch) -> None:
    def summed(_: Rows, i: int, statistic: Statistic) -> str:
        return f"CAST(COALESCE(SUM(v{i}), 0) * {statistic.factor} AS BIGINT) AS s{i}"

    monkeypatch.setattr(steps, "sum_of_owner", summed)
    said: list[str] = []
    assert search(None, 600, 1, said.append)
    (case,) = said
    reason, *lines = case.splitlines()
    assert reason.startswith("# ") and "moved by" in reason
    assert any(line.startswith("SELECT ") for line in lines)
    assert "----" in lines
    assert len(lines) < 25, "it was not made small"
