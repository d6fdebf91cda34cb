"""Names as PostgreSQL reads them, and which source a column comes from."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace

from sqlglot import exp

from dpsql.errors import AmbiguousColumn, MissingFrom, UnknownColumn
from dpsql.plan.scalars import Field, Ref

# PostgreSQL folds the letters of ASCII only.
_FOLDED = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def fold(name: str) -> str:
    """An unquoted name as PostgreSQL reads it."""
    return name.translate(_FOLDED)


def folded(identifier: exp.Expression) -> str:
    """An identifier's name: unquoted ones fold to lower case."""
    name = str(identifier.this)
    return name if identifier.args.get("quoted") else fold(name)


def position(node: exp.Expression) -> int | None:
    """One-based position of a node in the analyst's text: of its first part that has one."""
    starts = [start for part in node.walk() if isinstance(start := part.meta.get("start"), int)]
    return min(starts) + 1 if starts else None


@dataclass(frozen=True, slots=True)
class Source:
    """One item of FROM: its alias and the fields that can be named through it."""

    alias: str
    fields: tuple[Field, ...]
    schema: str | None = None  # of a table without an alias; empty if it was not written

    def is_named(self, table: str, schema: str | None) -> bool:
        return self.alias == table and (schema is None or self.schema in ("", schema))


@dataclass(slots=True)
class Scope:
    """The meaning of column names at one point of a query."""

    sources: list[Source] = field(default_factory=list)
    merged: dict[str, Field] = field(default_factory=dict)  # columns of JOIN … USING
    parent: Scope | None = None

    def make_optional(self, fields: Set[int]) -> None:
        """Mark columns that an outer join may fill with NULL."""

        def changed(field: Field) -> Field:
            return replace(field, optional=True) if field.id in fields else field

        self.sources = [replace(source, fields=tuple(map(changed, source.fields))) for source in self.sources]
        self.merged = {name: changed(found) for name, found in self.merged.items()}

    def find(self, column: exp.Column) -> Ref:
        at = position(column)
        name = folded(column.this)
        table = column.args.get("table")
        schema = column.args.get("db")
        found = self._lookup(name, folded(table) if table else None, folded(schema) if schema else None, at)
        if found is None:
            if table is not None and not self._has_source(folded(table)):
                raise MissingFrom(folded(table), position=at)
            shown = f"{folded(table)}.{name}" if table else name
            raise UnknownColumn(shown, position=at)
        return Ref(found, at)

    def _lookup(self, name: str, table: str | None, schema: str | None, at: int | None) -> Field | None:
        if table is None and name in self.merged:
            return self.merged[name]
        matches = [
            candidate
            for source in self.sources
            if table is None or source.is_named(table, schema)
            for candidate in source.fields
            if candidate.name == name
        ]
        if len(matches) > 1:
            raise AmbiguousColumn(f'column reference "{name}" is ambiguous', position=at)
        if matches:
            return matches[0]
        return None if self.parent is None else self.parent._lookup(name, table, schema, at)

    def _has_source(self, alias: str) -> bool:
        return any(source.alias == alias for source in self.sources) or (
            self.parent is not None and self.parent._has_source(alias)
        )
