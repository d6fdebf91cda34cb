"""The verdict of every case, and nothing else of it: what the fast tier asks. `test_cases.py` checks the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dpsql.compliance.cases import all_files, read
from dpsql.compliance.lab import Lab
from grammar_tests.checks import expected_text


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One of its own: what other tests compile while they break something is remembered in theirs."""
    with closing(Lab(tmp_path_factory.mktemp("lab"))) as made:
        yield made


@pytest.mark.parametrize("file", all_files(), ids=lambda file: file.stem)
def test_verdicts(file: Path, lab: Lab) -> None:
    cases = read(file)
    assert [case.problem for case in cases if case.problem is not None] == []
    other = [case for case in cases if expected_text(case, lab.dataset(case.policy)) != case.expected]
    assert [f"{case.name}: {case.sql}" for case in other] == []
