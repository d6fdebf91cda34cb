"""Every key that the engine computes from rows within their declaration is among the keys of the expression."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given

from dpsql.errors import Error, InternalError
from dpsql.privacy.keys.domains import domain
from tests.property.expressions import computed, selections
from tests.property.generate import thorough
from tests.property.world import MAX_CELLS, Case


def check_domains(case: Case) -> int:
    """How many keys were looked for."""
    looked = 0
    for found in computed(case):
        keys = domain(found.scalar, found.facts, MAX_CELLS)
        if keys is None:
            continue
        assert len(set(keys)) == len(keys) <= MAX_CELLS
        for value in filter(_is_key, found.values):
            looked += 1
            assert value in keys, f"{found.scalar} = {value!r}, not among {keys}"
    return looked


def _is_key(value: Any) -> bool:
    """NULL is a key by declaration or not at all, and what is no number counts as NULL."""
    return math.isfinite(value) if isinstance(value, float) else value is not None


def test_keys_are_among_the_declared_ones() -> None:
    looked = 0

    @thorough(300)
    @given(case=selections(depth=2))
    def holds(case: Case) -> None:
        nonlocal looked
        try:
            looked += check_domains(case)
        except InternalError:
            raise
        except Error:
            return

    holds()
    assert looked > 300
