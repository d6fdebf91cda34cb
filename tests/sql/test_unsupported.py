"""Functions of other databases: each is refused, and the hint names only what there is."""

from __future__ import annotations

import re

import pytest

from dpsql.errors import NotSupported, UnknownFunction
from dpsql.sql.parse import parse
from dpsql.sql.unsupported import _HINTS


@pytest.mark.parametrize("name", sorted(_HINTS))
def test_a_function_from_elsewhere_is_refused_with_a_hint(name: str) -> None:
    with pytest.raises((UnknownFunction, NotSupported)) as caught:
        parse(f"SELECT {name}(x) FROM people")
    assert caught.value.hint == _HINTS[name]


@pytest.mark.parametrize("hint", sorted(set(_HINTS.values())))
def test_a_hint_names_what_there_is(hint: str) -> None:
    for call in re.findall(r"[A-Z_a-z]+\((?:[^()…]*)\)", hint):
        parse(f"SELECT {call} FROM people")
