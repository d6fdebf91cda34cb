"""The planted defects fit the code as it is; `python -m tests.mutations` sees whether each is caught."""

from __future__ import annotations

import pytest

from tests.mutations.__main__ import ROOT, Defect, defects

AT_LEAST = 25


@pytest.mark.parametrize("defect", defects(), ids=lambda defect: defect.name)
def test_a_defect_can_be_planted(defect: Defect) -> None:
    text = (ROOT / defect.file).read_text()
    assert text.count(defect.old) == 1, f"the text is in {defect.file} {text.count(defect.old)} times, not once"
    assert defect.old != defect.new


def test_there_are_enough_and_no_two_have_one_name() -> None:
    names = [defect.name for defect in defects()]
    assert AT_LEAST <= len(names) == len(set(names))
