"""No unit moves an exact sum further than the noise step was told, whatever is asked and whatever the rows hold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import duckdb
import pytest
from hypothesis import given

from dpsql.errors import Error, InternalError
from dpsql.lowering import bounded_sums, histograms, row_values, steps
from dpsql.lowering.bounded_sums import Written
from dpsql.lowering.clip import Clip
from dpsql.lowering.fast_paths import Steps
from dpsql.lowering.relations import RelationWriter
from dpsql.lowering.row_values import Rows
from dpsql.lowering.select import Pipeline, Select
from dpsql.plan.nodes import Plan, SetOperation
from dpsql.plan.scalars import Aggregated, Windowed
from dpsql.policy.model import Accounting, ColumnPolicy
from dpsql.privacy.normalize import plan as prepare
from dpsql.privacy.normalize.plan import Normalizer
from dpsql.privacy.rules import aggregates, joins, relations
from dpsql.privacy.rules.aggregates import Statistic, StatisticKind
from dpsql.privacy.stability import Stability
from tests.lowering.edited import reworded, with_step
from tests.property.flavours import bounded
from tests.property.generate import cases, thorough
from tests.property.world import Case, Declared, Row, check_neighbours


def test_no_unit_moves_a_sum_further_than_stated() -> None:
    tally: Counter[str] = Counter()

    @thorough(400)
    @given(case=cases())
    def holds(case: Case) -> None:
        tally["asked"] += 1
        try:
            check_neighbours(case)
        except InternalError:
            raise
        except Error:
            return  # a refusal is no answer; it shows nothing
        tally["answered"] += 1

    holds()
    # A test of refusals would show little.
    assert tally["answered"] > 0.6 * tally["asked"], tally


# --- teeth: each defect is planted, and a case finds it ---


def _people(rows: int, *columns: ColumnPolicy, **more: Any) -> Declared:
    return Declared(columns, max_rows=rows, **more)


def _rows(*cells: str, name: str = "n", who: str = "1") -> tuple[Row, ...]:
    return tuple({"who": who, name: cell} for cell in cells)


SMALL = bounded("n", 0, 9)
FREE = ColumnPolicy("n")
CLAMPED = bounded("who", 0, 9)  # many units look the same: only the owner tells them apart
OTHERS = _rows("1", "2", who="2")

Plant = Callable[[pytest.MonkeyPatch], None]


def _changed(patch: pytest.MonkeyPatch, module: object, name: str, change: Callable[[Pipeline], Pipeline]) -> None:
    """What a function writes, changed."""
    original = getattr(module, name)
    patch.setattr(module, name, lambda *args, **more: change(original(*args, **more)))


def _nothing_done(patch: pytest.MonkeyPatch, step: str) -> None:
    patch.setattr(steps, step, lambda _, pipeline, *__: pipeline)


def _clamp_at_the_scan_removed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RelationWriter, "normalised", lambda _, column, stored="": stored or f'"{column.name}"')


def _clamp_of_the_argument_removed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(row_values, "on_grid", lambda _, __, ___, name="e0": f"CAST({name} AS BIGINT)")


def _cut_per_owner_removed(patch: pytest.MonkeyPatch) -> None:
    def summed(_: Rows, i: int, statistic: Statistic) -> str:
        return f"CAST(COALESCE(SUM(v{i}), 0) * {statistic.factor} AS BIGINT) AS s{i}"

    patch.setattr(steps, "sum_of_owner", summed)


def _clip_removed(patch: pytest.MonkeyPatch) -> None:
    _nothing_done(patch, "clipped")


def _sums_of_a_group_clipped_apart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("dpsql.lowering.clip.MOST_ROOM", 1)
    _nothing_done(patch, "clipped_in_one_cell")


def _clip_rounds_to_nearest(patch: pytest.MonkeyPatch) -> None:
    quotient, rounded = r"\) // NULLIF\((.+?), 0\)\)", r" + \1 // 2) // NULLIF(\1, 0))"
    _changed(patch, steps, "clipped", lambda made: reworded(made, lambda text: re.sub(quotient, rounded, text)))


def _limit_removed(patch: pytest.MonkeyPatch) -> None:
    _nothing_done(patch, "limited")


def _replace_limit(patch: pytest.MonkeyPatch, place: str) -> None:
    def limited(_: Rows, pipeline: Pipeline, __: Sequence[str], cells: int) -> Pipeline:
        pipeline = pipeline.then("numbered", Select(("*", f"{place} AS place"), pipeline.last))
        return pipeline.then("limited", Select(("*",), pipeline.last, (f"place <= {cells}",)))

    patch.setattr(steps, "limited", limited)


def _keys_weighed_alike(patch: pytest.MonkeyPatch) -> None:
    original = steps.weight_of_key
    patch.setattr(steps, "weight_of_key", lambda rows, _, norm: original(rows, "1", norm))


def _keys_weighed_by_all_units(patch: pytest.MonkeyPatch) -> None:
    original = steps.weight_of_key
    patch.setattr(steps, "weight_of_key", lambda rows, _, norm: original(rows, "COUNT(*) OVER ()", norm))


def _limit_lets_ties_pass(patch: pytest.MonkeyPatch) -> None:
    # An order by owner and salt alone, as if the key had been forgotten: all keys tie.
    _replace_limit(patch, "rank() OVER (PARTITION BY owner ORDER BY md5($salt || CAST(owner AS VARCHAR)))")


def _limit_shared_by_all_units(patch: pytest.MonkeyPatch) -> None:
    _replace_limit(patch, "row_number() OVER (ORDER BY owner, k0)")


def _null_owner_kept(patch: pytest.MonkeyPatch) -> None:
    original = RelationWriter._select

    def unfiltered(self: RelationWriter, columns: list[str], source: str, where: str = "") -> str:
        return original(self, columns, source, "" if where == '"who" IS NOT NULL' else where)

    patch.setattr(RelationWriter, "_select", unfiltered)


def _rows_counted_as_units(patch: pytest.MonkeyPatch) -> None:
    original = steps.sum_of_owner

    def counted(rows: Rows, i: int, statistic: Statistic) -> str:
        return original(rows, i, replace(statistic, kind=StatisticKind.ROWS, clip=10**6))

    patch.setattr(steps, "sum_of_owner", counted)


def _large_owners_overlooked(patch: pytest.MonkeyPatch) -> None:
    original = bounded_sums.with_many_rows

    def overlooked(rows: Rows, counted: Plan, most: int) -> Pipeline:
        return original(rows, counted, most + 9)

    patch.setattr(bounded_sums, "with_many_rows", overlooked)


def _large_sums_overlooked(patch: pytest.MonkeyPatch) -> None:
    def fewer(select: Select) -> Select:
        return replace(select, having=tuple(f"COUNT(*) > 9 AND {condition}" for condition in select.having))

    _changed(patch, bounded_sums, "with_large_sums", lambda made: with_step(made, fewer))


def _joint_sums_overlooked(patch: pytest.MonkeyPatch) -> None:
    """Cut at the clip itself, one sum that is beyond it, beside others that are nothing, seems to be within."""
    original = bounded_sums.with_large_sums

    def overlooked(rows: Rows, clip: Clip) -> Pipeline:
        (whole,) = {clip.scale(group).whole for group in clip.groups}
        return reworded(original(rows, clip), lambda text: text.replace(f", {whole + 1})", f", {whole})"))

    patch.setattr(bounded_sums, "with_large_sums", overlooked)


def _units_added_up_as_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Steps, "spare", lambda *_: True)


def _large_owners_counted_twice(patch: pytest.MonkeyPatch) -> None:
    _changed(patch, bounded_sums, "in_one_pass", lambda made: reworded(made, lambda text: text.replace("-raw0", "0")))


def _others_among_large_owners(patch: pytest.MonkeyPatch) -> None:
    # Steps for everybody, beside the sums of those who need none.
    patch.setattr(RelationWriter, "_is_wanted", lambda _, column, *_rest: f'"{column}" IS NOT NULL')


def _union_keeps_one_row_per_unit(patch: pytest.MonkeyPatch) -> None:
    original = relations.union_all

    def united(left: Stability, right: Stability, *args: Any) -> Stability:
        return replace(original(left, right, *args), rows=left.rows, single=left.single and right.single)

    patch.setattr(relations, "union_all", united)


def _sums_per_unit_in_floating_point(patch: pytest.MonkeyPatch) -> None:
    def summed(_: Normalizer, call: Aggregated, column: Callable[[Aggregated], Any], __: object) -> Any:
        return column(call)

    patch.setattr(Normalizer, "_per_unit_value", summed)


def _leave_out(patch: pytest.MonkeyPatch, condition: str) -> None:
    """Generated SQL without the conditions that match."""
    original = RelationWriter._select

    def changed(self: RelationWriter, columns: list[str], source: str, where: str = "") -> str:
        return original(self, columns, re.sub(condition, "TRUE", source), re.sub(condition, "TRUE", where))

    patch.setattr(RelationWriter, "_select", changed)


def _owner_left_out_of_a_join(patch: pytest.MonkeyPatch) -> None:
    _leave_out(patch, r"l\.owner = r\.owner")


def _owner_left_out_of_a_subquery(patch: pytest.MonkeyPatch) -> None:
    _leave_out(patch, r"(?<!\w)owner = c\d+$")


def _owner_left_out_of_a_window(patch: pytest.MonkeyPatch) -> None:
    original = RelationWriter._window

    def crossing(self: RelationWriter, call: Windowed) -> str:
        return original(self, call).replace("PARTITION BY owner", "")

    patch.setattr(RelationWriter, "_window", crossing)


def _ties_decided_by_physical_order(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(prepare, "in_total_order", lambda call, _: call)


def _bounded_before_the_join(patch: pytest.MonkeyPatch) -> None:
    original = joins.join_public

    def kept(kind: Any, child: Stability, *args: Any, **more: Any) -> Stability:
        return replace(original(kind, child, *args, **more), single=child.single)

    patch.setattr(joins, "join_public", kept)


def _pairs_counted_as_one_row(patch: pytest.MonkeyPatch) -> None:
    original = joins.join_units

    def fewer(kind: Any, left: Stability, *args: Any) -> Stability:
        return replace(original(kind, left, *args), single=left.single)

    patch.setattr(joins, "join_units", fewer)


def _rows_that_refer_to_nobody_kept(patch: pytest.MonkeyPatch) -> None:
    _leave_out(patch, r'^"who" IS NOT NULL$')


def _sets_compared_without_owner(patch: pytest.MonkeyPatch) -> None:
    original = RelationWriter.relation

    def owner_dropped(self: RelationWriter, plan: Plan, needed: Any = None) -> str:
        text = original(self, plan, needed)
        if isinstance(plan, SetOperation):
            columns = [self.name(field) for field in plan.fields]
            parts = [f"SELECT {', '.join(columns)} FROM ({part})" for part in text[1:-1].split(") EXCEPT (")]
            return f"SELECT {columns[-1]} AS owner, * FROM ({' EXCEPT '.join(parts)})"
        return text

    patch.setattr(RelationWriter, "relation", owner_dropped)


def _chosen_clip_not_enforced(patch: pytest.MonkeyPatch) -> None:
    original = aggregates.clipped_at

    def only_said(statistic: Statistic, most: Fraction) -> Statistic:
        return replace(statistic, sensitivity=original(statistic, most).sensitivity)

    patch.setattr(aggregates, "clipped_at", only_said)


def _chosen_clip_left_to_large_owners(patch: pytest.MonkeyPatch) -> None:
    original = aggregates.clipped_at
    patch.setattr(aggregates, "clipped_at", lambda *args: replace(original(*args), cut=False))
    patch.setattr(Steps, "spare", lambda *_: True)


def _grouped_by_more(patch: pytest.MonkeyPatch, function: str, step: str, column: str) -> None:
    original = getattr(histograms, function)

    def more(select: Select) -> Select:
        return replace(select, group_by=(*select.group_by, column))

    patch.setattr(histograms, function, lambda *args: Written(with_step(original(*args).pipeline, more, step)))


def _contributions_of_cells(patch: pytest.MonkeyPatch) -> None:
    _grouped_by_more(patch, "contributions", "norms", "s0")


def _means_of_rows(patch: pytest.MonkeyPatch) -> None:
    _grouped_by_more(patch, "means", "per_owner", "v0")


def _residuals_only_scaled_as_rows(patch: pytest.MonkeyPatch) -> None:
    original = Clip.norms_of
    patch.setattr(Clip, "norms_of", lambda self, i: original(self, i)[-1:])


def _one_value_more_kept(patch: pytest.MonkeyPatch) -> None:
    original = steps.limited_if_many

    def kept(rows: Rows, pipeline: Pipeline, columns: Sequence[str], cells: int) -> Pipeline:
        made = original(rows, pipeline, columns, cells)
        return reworded(made, lambda text: text.replace(f"> {cells}", f"> {cells + 1}"), "with_many_cells")

    patch.setattr(steps, "limited_if_many", kept)


def _distinct_values_not_limited(patch: pytest.MonkeyPatch) -> None:
    original = histograms.distinct

    def unlimited(rows: Rows, statistic: Statistic, _: int, **more: Any) -> Written:
        return original(rows, statistic, 10**6, **more)

    patch.setattr(histograms, "distinct", unlimited)


# What the harness says when it finds each, and of what.
# Owners are told apart in two passes, in one, and by pairs, where nothing is chosen.
GROUPED = (
    "SELECT n, COUNT(*) FROM t GROUP BY n",
    "SELECT t.n, COUNT(*) FROM t JOIN d ON d.ref = t.k GROUP BY t.n",
    "SELECT n, SUM(n), COUNT(DISTINCT who) FROM t GROUP BY n",
)

DEFECTS: dict[Plant, tuple[str, Case]] = {
    _clamp_at_the_scan_removed: (
        "Overflow",
        Case("SELECT SUM(n * 9999999999) FROM t", _people(1, SMALL), (*_rows("2147483647"), *OTHERS)),
    ),
    _clamp_of_the_argument_removed: (
        "without 1, .* moved by",
        Case(
            "SELECT SUM(LENGTH(s)) FROM t",
            _people(1, ColumnPolicy("s", values=("a", "bb")), unique=True),
            _rows("'longer than declared'", name="s"),
        ),
    ),
    _cut_per_owner_removed: (
        "without 1, .* moved by",
        Case("SELECT SUM(n) FROM t", _people(2, SMALL), (*_rows("9", "9", "9"), *OTHERS)),
    ),
    _clip_removed: (
        "without 1, .* moved by",
        Case("SELECT n, SUM(n) FROM t GROUP BY n", _people(2, SMALL), (*_rows(*"998877"), *OTHERS)),
    ),
    _sums_of_a_group_clipped_apart: (
        "without 1, sums .* moved by .* together",
        Case("SELECT STDDEV(n) FROM t", _people(2, SMALL), (*_rows(*"990055"), *OTHERS)),
    ),
    _clip_rounds_to_nearest: (
        "without 1, .* moved by",
        Case("SELECT n, COUNT(*) FROM t GROUP BY n", _people(2, SMALL), (*_rows(*"12345"), *OTHERS)),
    ),
    _limit_removed: (
        "without 1, .* moved by",
        Case("SELECT n, COUNT(DISTINCT who) FROM t GROUP BY n", _people(2, FREE), (*_rows(*"123"), *OTHERS)),
    ),
    _keys_weighed_alike: (
        r"without 2, .*weights\) moved by",
        Case("SELECT n, COUNT(*) FROM t GROUP BY n", _people(3, FREE), (*_rows(*"123"), *OTHERS)),
    ),
    _keys_weighed_by_all_units: (
        r"without 2, .*weights\) moved by",
        Case("SELECT n FROM t GROUP BY n", _people(4, FREE), (*_rows("9"), *_rows(*"1234", who="2"))),
    ),
    _limit_lets_ties_pass: (
        "without 1, .* moved by",
        Case("SELECT n, COUNT(DISTINCT who) FROM t GROUP BY n", _people(2, FREE), (*_rows(*"123"), *OTHERS)),
    ),
    _limit_shared_by_all_units: (
        "without 1, .* moved by",
        Case(
            "SELECT n, COUNT(DISTINCT who) FROM t GROUP BY n",
            _people(2, FREE),
            (*_rows("1", "2", "3"), *_rows("4", "5", "6", who="2")),
        ),
    ),
    _null_owner_kept: (
        "without the rows without an owner, .* moved by",
        Case(
            "SELECT SUM(n) FROM t WHERE who NOT IN (SELECT who FROM t WHERE n > 5)",
            _people(1, SMALL),
            (*_rows("9", who="NULL"), *OTHERS),
        ),
    ),
    _rows_counted_as_units: (
        "without 1, .* moved by",
        Case("SELECT n, COUNT(DISTINCT who) FROM t GROUP BY n", _people(2, FREE), (*_rows("1", "1"), *OTHERS)),
    ),
    _large_owners_overlooked: (
        "without 1, .* moved by",
        Case("SELECT n, COUNT(*) FROM t GROUP BY n", _people(2, SMALL), (*_rows(*"12345"), *OTHERS)),
    ),
    _large_sums_overlooked: (
        "without 1, .* moved by",
        Case(
            f"SELECT n, SUM(n) FROM t GROUP BY n{' ' * 3}",
            _people(9, SMALL, tight=False),
            (*_rows(*"99998888"), *OTHERS),
        ),
    ),
    _joint_sums_overlooked: (
        "without 1, .* moved by",
        Case(
            "SELECT small, SUM(n) FILTER (WHERE flag), SUM(n) FILTER (WHERE NOT flag) FROM t GROUP BY small",
            _people(2, bounded("n", 0, 5_000), bounded("small", 0, 3), ColumnPolicy("flag")),
            ({"who": "1", "n": "5000", "small": "1", "flag": "TRUE"},) * 9,
        ),
    ),
    _units_added_up_as_rows: (
        "without 1, .* moved by",
        Case("SELECT n, COUNT(DISTINCT who) FROM t GROUP BY n", _people(2, SMALL), (*_rows("1", "1"), *OTHERS)),
    ),
    _large_owners_counted_twice: (
        "without 1, .* moved by",
        Case(
            "SELECT t.n, COUNT(*) FROM t JOIN d ON d.ref = t.k GROUP BY t.n",
            _people(2, SMALL, unique=True),
            ({"who": "1", "k": "0", "n": "1"},),
            details=({"ref": "0", "m": "1"},) * 9,
        ),
    ),
    _others_among_large_owners: (
        "without 2, .* moved by",
        Case("SELECT n, COUNT(*) FROM t GROUP BY n", _people(2, SMALL), (*_rows("1", "1"), *OTHERS)),
    ),
    _union_keeps_one_row_per_unit: (
        "without 2, .* moved by",
        Case(
            "SELECT COUNT(*) FROM (SELECT n FROM t UNION ALL SELECT n FROM t) AS q",
            _people(1, SMALL, unique=True),
            (*_rows("1"), *_rows("1", who="2")),
        ),
    ),
    _sums_per_unit_in_floating_point: (
        "without nobody, .* moved by",
        Case(
            "SELECT SUM(LEAST(GREATEST(total, 0), 9)) FROM (SELECT who, SUM(x) AS total FROM t GROUP BY who) AS q",
            _people(3, bounded("x", -(2**53), 2**53)),
            _rows("9007199254740992", "1", "-9007199254740992", name="x"),
        ),
    ),
    _owner_left_out_of_a_join: (
        "without .*, .* moved by",
        Case(
            "SELECT SUM(a.n) FROM t AS a JOIN t AS b ON a.who = b.who",
            _people(1, SMALL, unique=True),
            (*_rows("1"), *_rows("9", who="2"), *_rows("9", who="-2147483648")),
        ),
    ),
    _owner_left_out_of_a_subquery: (
        "without 100, .* moved by",
        Case(
            "SELECT COUNT(*) FROM t WHERE EXISTS (SELECT 1 FROM t AS i WHERE i.who = t.who AND i.n > 5)",
            _people(1, SMALL, CLAMPED),
            (*_rows("9", who="100"), *_rows("1", who="200"), *_rows("1", who="300")),
        ),
    ),
    _owner_left_out_of_a_window: (
        "without 2, .* moved by",
        Case(
            "SELECT n, COUNT(*) FROM (SELECT n, row_number() OVER (PARTITION BY who ORDER BY n) AS c0 FROM t) AS q"
            " WHERE c0 % 2 = 0 GROUP BY n",
            _people(1, SMALL),
            (*_rows("0"), *_rows("1", who="2"), *_rows("2", who="3"), *_rows("3", who="4")),
        ),
    ),
    _ties_decided_by_physical_order: (
        "without nobody, .* moved by",
        Case(
            "SELECT SUM(n) FROM (SELECT n, row_number() OVER (PARTITION BY who ORDER BY small) AS c0 FROM t) AS q"
            " WHERE c0 = 1",
            _people(3, SMALL, bounded("small", 0, 3)),
            ({"who": "1", "n": "1", "small": "0"}, {"who": "1", "n": "2", "small": "0"}),
        ),
    ),
    _bounded_before_the_join: (
        "without 1, .* moved by",
        Case("SELECT COUNT(*) FROM t JOIN p ON t.n = p.a", _people(1, SMALL, unique=True), _rows("1")),
    ),
    _pairs_counted_as_one_row: (
        "without 1, .* moved by",
        Case(
            "SELECT COUNT(*) FROM t JOIN d ON d.ref = t.k",
            _people(2, SMALL, unique=True),
            ({"who": "1", "k": "0"},),
            details=({"ref": "0", "m": "1"},) * 5,
        ),
    ),
    _rows_that_refer_to_nobody_kept: (
        "without the rows without an owner, .* moved by",
        Case(
            "SELECT SUM(m) FROM d", _people(1, SMALL), ({"who": "NULL", "k": "0"},), details=({"ref": "0", "m": "1"},)
        ),
    ),
    _sets_compared_without_owner: (
        "without 100, .* moved by",
        Case(
            "SELECT COUNT(*) FROM (SELECT who, n FROM t WHERE small = 0"
            " EXCEPT SELECT who, n FROM t WHERE small = 1) AS q",
            _people(1, SMALL, CLAMPED, bounded("small", 0, 3)),
            tuple({"who": "100", "n": str(n), "small": "1"} for n in (1, 2))
            + tuple({"who": str(n * 200), "n": str(n), "small": "0"} for n in (1, 2)),
        ),
    ),
    _chosen_clip_not_enforced: (
        "without 1, .* moved by",
        Case("SELECT SUM(n) FROM t WHERE n > 1", _people(9, SMALL, tight=False), (*_rows(*"99999"), *OTHERS)),
    ),
    _chosen_clip_left_to_large_owners: (
        "without 1, .* moved by",
        Case(GROUPED[0], _people(9, SMALL, tight=False), (*_rows(*"12345678"), *OTHERS)),
    ),
    _contributions_of_cells: (
        r"without ., .*clip\) moved by",
        Case("SELECT n, AVG(n) FROM t GROUP BY n", _people(9, SMALL, tight=False), (*_rows(*"129"), *OTHERS)),
    ),
    _means_of_rows: (
        r"without 2, .*centre\) moved by",
        Case("SELECT AVG(n) FROM t", _people(9, SMALL, tight=False), (*_rows(*"129"), *OTHERS)),
    ),
    _residuals_only_scaled_as_rows: (
        "without ., .* moved by",
        Case(f"SELECT AVG(n) FROM t{' ' * 6}", _people(9, SMALL, tight=False), (*_rows(*"99999"), *OTHERS)),
    ),
    _one_value_more_kept: (
        "without 1, .* moved by",
        Case("SELECT COUNT(DISTINCT n) FROM t", _people(2, SMALL), (*_rows(*"345"), *OTHERS)),
    ),
    _distinct_values_not_limited: (
        "without 1, .* moved by",
        Case("SELECT COUNT(DISTINCT n) FROM t", _people(2, SMALL), (*_rows(*"456"), *OTHERS)),
    ),
}


@pytest.mark.parametrize("plant", DEFECTS, ids=lambda plant: plant.__name__.strip("_"))
@pytest.mark.parametrize("accounting", ["basic", "zcdp"])
def test_a_planted_defect_is_found(plant: Plant, accounting: Accounting, monkeypatch: pytest.MonkeyPatch) -> None:
    complaint, case = DEFECTS[plant]
    case = replace(case, declared=replace(case.declared, accounting=accounting))
    check_neighbours(case)
    plant(monkeypatch)
    with pytest.raises((AssertionError, duckdb.Error), match=complaint):
        check_neighbours(case)


@pytest.mark.parametrize("sql", GROUPED)
@pytest.mark.parametrize("accounting", ["basic", "zcdp"])
@pytest.mark.parametrize("cells", ["12345678", "11111111", "99999999"])
def test_within_what_is_declared_a_unit_is_still_cut_to_a_chosen_clip(
    sql: str, accounting: Accounting, cells: str
) -> None:
    heavy = tuple({**row, "k": str(i)} for i, row in enumerate((*_rows(*cells), *OTHERS)))
    details = tuple({"ref": row["k"], "m": "1"} for row in heavy)
    declared = _people(9, SMALL, tight=False, accounting=accounting)
    chosen = set()
    for spaces in range(4):  # which of the clips is chosen goes by the length of the text
        release = check_neighbours(Case(sql + " " * spaces, declared, heavy, details=details))
        assert release.chosen
        chosen |= {s.clip // s.factor for m in release.measurements for s in m.statistics if s.cut}
    assert len(chosen) > 2
