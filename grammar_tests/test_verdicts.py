"""The verdict of every case, and nothing else of it: what the fast tier asks. `test_cases.py` checks the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpsql.compliance.cases import all_files, read
from dpsql.compliance.lab import Lab
from grammar_tests.checks import expected_text


@pytest.mark.parametrize("file", all_files(), ids=lambda file: file.stem)
def test_verdicts(file: Path, lab: Lab) -> None:
    cases = read(file)
    assert [case.problem for case in cases if case.problem is not None] == []
    other = [case for case in cases if expected_text(case, lab.dataset(case.policy)) != case.expected]
    assert [f"{case.name}: {case.sql}" for case in other] == []
