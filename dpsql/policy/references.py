"""Units by reference: the way from a row to its owner, checked against the schema of the database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dpsql.policy.model import Column, ColumnSchema, Step, TablePolicy, TableSchema, UnitReference
from dpsql.policy.problems import Report, nearest, quoted
from dpsql.types import Kind, Type

# Whether no two rows of a table share the values of these columns, asked of data that cannot change while it is open.
IsUnique = Callable[[tuple[str, ...], tuple[str, ...]], bool]

# Equal values of these types are the same value. Doubles are left out: there is NaN, -0 and rounding.
UNIT_KINDS = (Kind.INTEGER, Kind.DECIMAL, Kind.TEXT, Kind.DATE)


@dataclass(frozen=True, slots=True)
class Bound:
    """A table of the database with the columns that are declared of it, by their names there."""

    schema: TableSchema
    columns: Mapping[str, Column]

    def spelled(self, column: ColumnSchema | None, written: str) -> str:
        """A column as analysts write it: as it is declared, else as the reference has it."""
        known = None if column is None else self.columns.get(column.name)
        return written if known is None else known.name

    @property
    def unique(self) -> frozenset[frozenset[str]]:
        """The sets of columns the engine holds unique, as analysts write them."""
        return frozenset(
            frozenset(self.columns[name].name if name in self.columns else name for name in names)
            for names in self.schema.unique
        )


def bind_step(declared: TablePolicy, found: Bound, target: Bound, is_unique: IsUnique, report: Report) -> Step | None:
    """One step of a reference.

    Claim: every row has at most one row it belongs to, and so at most one owner.
    Because: the key is unique in the table it stands in, and both sides are compared as one type, value by value.
    Needs: uniqueness that the engine enforces, or data that nobody can change while dpsql reads it.
    """
    reference = declared.unit
    assert isinstance(reference, UnitReference)
    line = declared.line
    vias = [_column(name, found.schema, report, line) for name in reference.via]
    keys = [_column(name, target.schema, report, line) for name in reference.key]
    types: list[Type] = []
    for via, key in zip(vias, keys, strict=True):
        if via is None or key is None:
            continue
        if key.type is None or key.type.kind not in UNIT_KINDS:
            report.add(
                line, f"key {quoted(key.name)} of table {quoted(reference.table)} is of type {key.native}", _KINDS
            )
        elif via.type is None or comparison_class(via.type) != comparison_class(key.type):
            report.add(
                line,
                f"{quoted(via.name)} and {quoted(key.name)} have types that cannot be compared:"
                f" {via.native} and {key.native}",
                "a reference and its key are of one type",
            )
        else:
            types.append(key.type)
    if len(types) < len(reference.via):
        return None
    names = tuple(key.name for key in keys if key is not None)
    enforced = any(unique <= frozenset(names) for unique in target.schema.unique)
    if not enforced and not is_unique(target.schema.source, names):
        listed = ", ".join(names)
        report.add(
            line,
            f"{listed} is not unique in table {quoted(reference.table)}: a row could have two owners",
            f"make it a PRIMARY KEY or UNIQUE: ({listed})",
        )
        return None
    return Step(
        tuple(found.spelled(via, name) for via, name in zip(vias, reference.via, strict=True)),
        reference.table,
        target.schema.source,
        tuple(target.spelled(key, name) for key, name in zip(keys, reference.key, strict=True)),
        tuple(types),
    )


_KINDS = "a reference is made of integers, decimals, texts and dates"


def comparison_class(unit: Type | None) -> tuple[Kind, int] | None:
    """Owners are compared as they are, so their types must be the same; integers are widened to one."""
    if unit is None:
        return None
    return (unit.kind, 0) if unit.kind is Kind.INTEGER else (unit.kind, unit.precision * 100 + unit.scale)


def _column(name: str, table: TableSchema, report: Report, line: int | None) -> ColumnSchema | None:
    fitting = [name] if name in table.columns else [c for c in table.columns if c.casefold() == name.casefold()]
    if len(fitting) == 1:
        return table.columns[fitting[0]]
    meant = nearest(name, table.columns)
    report.add(
        line,
        f"column {quoted(name)} of a reference does not exist in table {quoted(table.source[-1])}",
        None if meant is None else f"write: {quoted(meant)}",
    )
    return None
