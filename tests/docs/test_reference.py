"""Reference pages are what the tables in code say, and the tables are whole."""

from __future__ import annotations

import pytest

from dpsql.docs import PAGES, REFERENCE


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_it_would_be_written(name: str) -> None:
    written = (REFERENCE / name).read_text(encoding="utf-8")
    assert written == PAGES[name](), "write it anew: python -m dpsql.docs"


def test_every_page_has_its_function() -> None:
    assert {path.name for path in REFERENCE.iterdir()} == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_every_row_of_a_table_has_as_many_cells(name: str) -> None:
    width = 0
    for line in PAGES[name]().splitlines():
        cells = line.replace("\\|", "").count("|") if line.startswith("|") else 0
        assert cells == 0 or width in (0, cells), line
        width = cells
