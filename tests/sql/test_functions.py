"""The table of functions: what is computed with is in it, and what follows from it."""

from __future__ import annotations

import pytest

from dpsql.errors import UnknownFunction
from dpsql.plan.scalars import Agg, Op
from dpsql.sql.functions import FAMILIES, FUNCTIONS, SIGNATURES
from dpsql.sql.functions.table import MANY, Function
from dpsql.sql.parse import parse
from dpsql.sql.unsupported import _HINTS, _NAMES

ROWS = [row for family in FAMILIES.values() for row in family]


@pytest.mark.parametrize("member", [*Op, *Agg])
def test_every_operation_and_aggregate_has_a_row(member: Op | Agg) -> None:
    assert any(member in row.computes for row in ROWS)


def test_forms_are_told_apart() -> None:
    forms = [row.form for row in ROWS]
    assert len(forms) == len(set(forms))


def test_rows_of_one_node_read_it_alike() -> None:
    """One rule reads a node, so that it does not matter which of its rows comes last."""
    reads: dict[object, tuple[object, ...]] = {}
    for row in ROWS:
        if row.node is not None and row.rule is not None:
            how = (
                row.rule.__code__,
                row.rule.__closure__ and [c.cell_contents for c in row.rule.__closure__],
                row.reads,
            )
            assert reads.setdefault(row.node, how) == how, row.form


@pytest.mark.parametrize(
    ("form", "name", "arguments"),
    [
        ("now()", "now", (0, 0)),
        ("abs(number)", "abs", (1, 1)),
        ("round(number [, digits])", "round", (1, 2)),
        ("lag(value [, offset [, default]]) OVER (…)", "lag", (1, 3)),
        ("coalesce(value, …)", "coalesce", (1, MANY)),
        ("concat_ws(separator, value, …)", "concat_ws", (2, MANY)),
        ("extract(field FROM moment)", "extract", (1, 1)),
        ("mode() WITHIN GROUP (ORDER BY value)", "mode", (0, 0)),
    ],
)
def test_a_form_says_the_name_and_the_number_of_arguments(form: str, name: str, arguments: tuple[int, int]) -> None:
    row = Function(form, "", "")
    assert (row.name, row.arguments) == (name, arguments)


@pytest.mark.parametrize("form", ["a + b", "CAST(value AS type)", "(array)[place]"])
def test_an_operator_is_no_function(form: str) -> None:
    assert Function(form, "", "").name is None


def test_meanings_of_one_name_are_added_up() -> None:
    assert len(FUNCTIONS["to_timestamp"]) == 2
    assert (SIGNATURES["to_timestamp"].least, SIGNATURES["to_timestamp"].most) == (1, 2)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_wrong_number_of_arguments_is_answered_with_the_form(name: str) -> None:
    signature = SIGNATURES[name]
    count = signature.most + 1
    if count > MANY:
        count = signature.least - 1
    with pytest.raises(UnknownFunction) as caught:
        parse(f"SELECT {name}({', '.join('x' * count)})")
    assert caught.value.hint == f"Write {' or '.join(row.form for row in FUNCTIONS[name])}."


@pytest.mark.parametrize(("name", "meant"), [("lenght", "length"), ("avgg", "avg"), ("stdev", "stddev")])
def test_a_misspelled_function_is_answered_with_the_one_meant(name: str, meant: str) -> None:
    with pytest.raises(UnknownFunction) as caught:
        parse(f"SELECT {name}(x)")
    assert caught.value.hint == f'Perhaps you meant the function "{meant}".'


@pytest.mark.parametrize("name", ["qqq", "x" * 5_000])
def test_a_function_like_no_other_has_no_hint(name: str) -> None:
    with pytest.raises(UnknownFunction) as caught:
        parse(f"SELECT {name}(x)")
    assert caught.value.hint is None


def test_what_is_answered_is_not_listed_as_refused() -> None:
    assert not {*_HINTS, *_NAMES} & set(FUNCTIONS)
