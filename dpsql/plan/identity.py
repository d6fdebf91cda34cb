"""Canonical texts of plans: without analysts' names, and with only those facts of tables that decide answers.

Two plans with the same text have the same rows in every database. Columns are numbered in the order of the text, which
ends with the facts about each column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from dpsql.effort import spend
from dpsql.plan.nodes import Distinct, Filter, OfUnit, Plan, Project, Released, Scan, SetOperation
from dpsql.plan.prune import pruned
from dpsql.plan.scalars import Call, Case, Const, Correlated, Field, InStage, Op, Ref, Scalar, StageValue
from dpsql.plan.zones import known_zone
from dpsql.policy.canonical import Canonical, canonical, digest, leaf, term
from dpsql.policy.fingerprint import facts_of
from dpsql.types import Type

_LONG = 500  # characters; a longer expression is replaced by its hash, since expressions share parts
_ZONED = frozenset({Op.TO_ZONE, Op.FROM_ZONE, Op.ZONED_TRUNC})
_COMMUTES = frozenset({Op.AND, Op.OR})
_SYMMETRIC = frozenset({Op.EQ, Op.NE, Op.DISTINCT_FROM})


@dataclass(frozen=True, slots=True, order=True)
class Read:
    """A table, or one of its declared columns, and a hash of the policy's declarations for it that decide answers."""

    source: tuple[str, ...]  # in the database
    column: str  # empty: the table itself
    facts: str


# The nodes that are written by hand instead of field by field, with the fields that this code handles.
WRITTEN: Mapping[type, tuple[str, ...]] = {
    # Names are the analyst's. Links prove which rows join; they do not decide it.
    Field: ("id", "name", "type", "unit", "readable", "optional", "links"),
    Ref: ("field", "position"),
    Type: ("kind", "precision", "scale", "big", "numeric", "mixed", "element"),
    Const: ("value", "type"),
    Call: ("op", "args", "type", "option"),
    StageValue: ("stage", "type"),
    InStage: ("arg", "stage", "item", "type"),
    Correlated: ("kind", "plan", "type", "arg", "outer", "owner", "low", "high"),
    Scan: ("table", "fields", "columns"),
    Filter: ("child", "predicate"),
    OfUnit: ("child", "owner"),
    Project: ("child", "items"),
    Distinct: ("child",),
    SetOperation: ("kind", "left", "right", "fields"),
    Released: ("measurement", "fields"),
}


class PlanText(Canonical):
    """Writes the parts of one question, with one number per column; afterwards it knows what the question reads.

    Claim: two questions with one text, each with its `end`, mean the same.
    Because: the plan can be recovered from the text, except for what decides nothing: names, positions in a text,
    columns that are not read, the order of conditions. Every expression is total, so conditions may be tested in any
    order.
    Needs: nodes written with all their fields; `WRITTEN` lists the nodes that are written by hand.
    """

    def __init__(self, stages: Sequence[int] = (), measurements: Sequence[int] = ()) -> None:
        """Earlier stages and noisy tables are written by their positions here; their identities are elsewhere."""
        self._stages = stages
        self._measurements = measurements
        self._ids: dict[int, int] = {}
        self._shown: dict[int, int] = {}  # column -> the column that it shows unchanged
        self._fields: dict[tuple[object, ...], int] = {}  # by the facts about it
        self._shared: dict[int, tuple[Scalar, str]] = {}  # by identity
        self.reads: dict[Read, None] = {}

    def end(self) -> str:
        """The facts about each column, in the order of their numbers."""
        return term(*map(canonical, self._fields))

    def text(self, value: object) -> str:
        """The text of a value. Expressions may share parts exponentially often, so each is written once, in short."""
        if not isinstance(value, Call | Case):
            return super().text(value)
        if (found := self._shared.get(id(value))) is not None:
            return found[1]
        spend()
        text = self._call(value) if isinstance(value, Call) else self.dataclass_text(value)
        if len(text) > _LONG:
            text = leaf(f"#{digest(text).hex()}")
        self._shared[id(value)] = value, text
        return text

    def special(self, value: object) -> str | None:
        match value:
            case Field():
                return self._field(value)
            case Ref(field=named):
                return self._field(named)
            case Type():
                return type_text(value)
            case Const(value=constant, type=type_):
                return term(_CONSTANT, canonical(constant), type_text(type_))
            case Scan():
                return self._scan(value)
            case Filter():
                return self._filter(value)
            case Project() if self._hands_on(value):
                return self.text(value.child)
            case Distinct(child=child):
                return term(_DISTINCT, self._with_columns(child))
            case SetOperation(kind=kind, left=left, right=right, fields=fields):
                sides = map(self._with_columns, (left, right))
                return term(_SET, canonical(kind), *sides, *map(self._field, fields))
            case Released(measurement=measurement, fields=fields):
                return term(_RELEASED, canonical(self._measurements.index(measurement)), *map(self._field, fields))
            case StageValue(stage=stage, type=type_):
                return term(_STAGE, canonical(self._stages.index(stage)), type_text(type_))
            case InStage(arg=arg, stage=stage, item=item):
                return term(_IN_STAGE, self.text(arg), canonical(self._stages.index(stage)), type_text(item))
            case OfUnit(child=child, owner=owner):
                return term(_OF_UNIT, self.text(child), self._owner(owner))
            case Correlated():
                return self._correlated(value)
            case _:
                return None

    def _hands_on(self, plan: Project) -> bool:
        """Whether a projection only selects and renames columns, which are then written as the originals."""
        pairs = [(target, value.field) for target, value in plan.items if isinstance(value, Ref)]
        if len(pairs) < len(plan.items) or any(_known_of(one) != _known_of(other) for one, other in pairs):
            return False
        self._shown |= {one.id: other.id for one, other in pairs if one.id != other.id}
        return True

    def _with_columns(self, plan: Plan) -> str:
        """A relation whose columns are identified by their positions."""
        return self.text(plan) + term(*map(self._field, plan.fields))

    def _field(self, field: Field) -> str:
        source = field.id
        while source in self._shown:
            source = self._shown[source]
        known = (self._ids.setdefault(source, len(self._ids)), *_known_of(field))
        return f"{self._fields.setdefault(known, len(self._fields))},"

    def _call(self, value: Call) -> str:
        if value.op in _COMMUTES:
            return self._joined(_OPERATIONS[value.op], _parts([value], value.op))
        texts = [self.text(arg) for arg in value.args]
        args = "".join(sorted(texts) if value.op in _SYMMETRIC else texts)
        zone = _zone_text(value.option) if value.op in _ZONED else ""
        return f"({_OPERATIONS[value.op]}{type_text(value.type)}{leaf(value.option)}{zone}{args})"

    def _joined(self, by: str, parts: Sequence[Scalar]) -> str:
        return term(by, *sorted({self.text(part) for part in parts}))

    def _scan(self, scan: Scan) -> str:
        table, facts = scan.table, facts_of(scan.table)
        self.reads[Read(table.source, "", facts.table)] = None
        parts = [_SCAN, leaf(facts.table)]
        for field, name in zip(scan.fields, scan.columns, strict=True):
            of_column = facts.columns.get(name, "")
            if of_column:
                self.reads[Read(table.source, name, of_column)] = None
            parts += (self._field(field), leaf(name), leaf(of_column))
        return term(*parts)

    def _filter(self, plan: Filter) -> str:
        below: Plan = plan
        tests: list[Scalar] = []
        while isinstance(below, Filter) or (isinstance(below, Project) and self._hands_on(below)):
            tests += [below.predicate] if isinstance(below, Filter) else []
            below = below.child
        return term(_FILTER, self.text(below), self._joined(_OPERATIONS[Op.AND], _parts(tests[::-1], Op.AND)))

    def _correlated(self, value: Correlated) -> str:
        outer = self.text(value.outer)
        shown = () if value.kind == "exists" else value.plan.fields
        plan = pruned(value.plan, {field.id for field in shown})
        type_ = value.type if shown else None
        others = map(self.text, (value.kind, type_, value.arg, value.low, value.high))
        owner = canonical(None) if value.owner is None else self._owner(value.owner)
        return term(_CORRELATED, outer, self.text(plan), *map(self._field, shown), owner, *others)

    def _owner(self, field: Field) -> str:
        """An owner is only compared with owners, whatever its type."""
        return leaf(f"@{self._ids.setdefault(field.id, len(self._ids))}")


_SCAN, _FILTER, _RELEASED = leaf("Scan"), leaf("Filter"), leaf("Released")
_DISTINCT, _SET, _OF_UNIT = leaf("Distinct"), leaf("SetOperation"), leaf("OfUnit")
_CONSTANT, _STAGE, _IN_STAGE, _CORRELATED = leaf("Const"), leaf("Stage"), leaf("InStage"), leaf("Correlated")
_OPERATIONS = {op: leaf(f"o{op.value}") for op in Op}


def _known_of(field: Field) -> tuple[object, ...]:
    return type_text(field.type), field.unit, field.readable, field.optional


def _parts(values: Sequence[Scalar], op: Op) -> list[Scalar]:
    """The operands of nested AND, or OR."""
    found: list[Scalar] = []
    waiting = list(values[::-1])
    while waiting:
        part = waiting.pop()
        if isinstance(part, Call) and part.op is op:
            waiting += part.args[::-1]
        else:
            found.append(part)
    return found


@cache
def _zone_text(option: str) -> str:
    """The offsets of a zone, which may change with newer zone data."""
    zone = known_zone(option.rpartition(" ")[2])
    return leaf(digest(canonical((zone.leaving, zone.arriving))).hex())


def type_text(type_: Type) -> str:
    element = "" if type_.element is None else type_text(type_.element)
    flags = f"{type_.big:d}{type_.numeric:d}{type_.mixed:d}"
    return leaf(f"{type_.kind.value},{type_.precision},{type_.scale},{flags}{element}")
