"""Reads the [tables] of the policy file: whom a row belongs to, and what its columns may hold."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from types import MappingProxyType
from typing import TypeGuard

from dpsql.policy.model import Bound, ColumnPolicy, TablePolicy, UnitReference
from dpsql.policy.problems import nearest, quoted
from dpsql.policy.section import POSITIVE, Section, header

_TABLE = ("public", "unit", "max_rows_per_unit", "max_groups_per_unit", "tight", "columns")
_REFERENCE = ("via", "table", "key")
_COLUMN = ("min", "max", "step", "values", "nullable_key", "tight", "max_rows_per_value")


def read_tables(root: Section) -> dict[str, TablePolicy]:
    """All declared tables by name. A table that is not declared does not exist for an analyst."""
    if "tables" not in root.content:
        root.report.add(None, "no table is declared", "write: [tables.NAME]")
    section = root.section("tables", None)
    if section is None:
        return {}
    tables: dict[str, TablePolicy] = {}
    for name in section.content:
        table = _read_table(section, name)
        if table is not None:
            tables[name] = table
    for table in tables.values():
        if isinstance(table.unit, UnitReference):
            _check_reference(section, tables, table.name, table.unit)
    return tables


def _read_table(tables: Section, name: str) -> TablePolicy | None:
    parts = name.split(".")
    if len(parts) > 2 or not all(parts) or "\0" in name:
        tables.problem(
            name, f"{quoted(name)} is not the name of a table", 'write: [tables.NAME] or [tables."SCHEMA.NAME"]'
        )
        return None
    content = tables.content[name]
    if _is_schema(content):
        for table in content:
            fix = f"write: [{header(('tables', f'{name}.{table}'))}]"
            tables.report.add(tables.line(name, table), "a table in a schema needs quotation marks", fix)
        return None
    section = tables.section(name, _TABLE)
    if section is None:
        return None
    if section.flag("public"):
        for key in section.content:
            if key in _TABLE and key not in ("public", "columns"):
                section.problem(
                    key, f"public table {quoted(name)} takes no {quoted(key)}", "remove it, or public = true"
                )
        return TablePolicy(name, public=True, columns=_read_columns(section, public=True), line=section.line())
    return TablePolicy(
        name,
        unit=_read_unit(section, name),
        max_rows_per_unit=section.integer("max_rows_per_unit") or 1,
        max_groups_per_unit=section.integer("max_groups_per_unit"),
        columns=_read_columns(section),
        line=section.line(),
        tight=_said(section, "tight"),
    )


def _is_schema(content: object) -> TypeGuard[dict[str, object]]:
    """[tables.sales.orders] without quotation marks: TOML reads a table "sales" that holds only tables."""
    return (
        isinstance(content, dict)
        and bool(content)
        and all(isinstance(value, dict) and key not in _TABLE for key, value in content.items())
    )


# --- the unit ---


def _read_unit(section: Section, name: str) -> str | UnitReference | None:
    unit = section.content.get("unit")
    if unit is None:
        section.report.add(
            section.line(), f"table {quoted(name)} has no unit", 'write: unit = "COLUMN", or public = true'
        )
        return None
    if not isinstance(unit, dict):
        return section.text("unit")
    reference = section.section("unit", _REFERENCE)
    if reference is None:
        return None
    for key in _REFERENCE:
        if key not in reference.content:
            reference.missing(key, 'write: unit = { via = "COLUMN", table = "TABLE", key = "COLUMN" }')
    via, table, target = reference.texts("via"), reference.text("table"), reference.texts("key")
    if via is None or table is None or target is None:
        return None
    if len(via) != len(target):
        reference.problem("via", f'"via" and "key" in {reference.title} name different numbers of columns')
        return None
    return UnitReference(via, table, target)


def _check_reference(section: Section, tables: Mapping[str, TablePolicy], name: str, unit: UnitReference) -> None:
    """A chain of references must end at a table that names its unit itself: else a row has no owner."""
    line = section.line(name, "unit")
    # A table that is declared but could not be read has been reported; it is not missing.
    if unit.table not in section.content:
        meant = nearest(unit.table, tables)
        fix = None if meant is None else f"write: table = {quoted(meant)}"
        section.report.add(line, f"the unit refers to table {quoted(unit.table)}, which is not declared", fix)
        return
    target = tables.get(unit.table)
    if target is not None and target.public:
        section.report.add(line, f"the unit refers to table {quoted(unit.table)}, which is public and has no unit")
    passed: set[str] = set()
    while target is not None and target.name not in passed and isinstance(target.unit, UnitReference):
        if target.name == name:
            section.report.add(line, f"the unit of table {quoted(name)} refers back to itself")
            return
        passed.add(target.name)
        target = tables.get(target.unit.table)


# --- the columns ---


def _read_columns(table: Section, *, public: bool = False) -> Mapping[str, ColumnPolicy]:
    section = table.section("columns", None)
    columns: dict[str, ColumnPolicy] = {}
    if section is not None:
        for name, content in section.content.items():
            if not isinstance(content, dict):
                fix = f"write: {header((name,))} = {{}}"
                section.problem(name, f"column {quoted(name)} needs braces, even with nothing between them", fix)
                continue
            column = section.section(name, _COLUMN)
            if column is not None:
                columns[name] = _read_column(column, name, public=public)
    return MappingProxyType(columns)


def _read_column(column: Section, name: str, *, public: bool) -> ColumnPolicy:
    lower, upper = _read_bounds(column)
    step = column.number("step", POSITIVE)
    values = column.values("values")
    if "values" in column.content and ("min" in column.content or "max" in column.content):
        column.problem("values", f'{column.title} has "values" as well as "min" or "max"', "keep one of the two")
    if step is not None and (isinstance(lower, date) or (values is not None and type(values[0]) is not int)):
        column.problem("step", f'"step" in {column.title} is for numbers only', "remove it")
    if "tight" in column.content and lower is None:
        column.problem("tight", f'"tight" in {column.title} is for columns with "min" and "max"', "remove it")
    tight, most = _said(column, "tight"), column.integer("max_rows_per_value")
    if most is not None and not public:
        fix = "remove it; max_rows_per_unit bounds the rows of a private table"
        column.problem("max_rows_per_value", f'"max_rows_per_value" in {column.title} is for public tables only', fix)
    return ColumnPolicy(name, lower, upper, step, values, column.flag("nullable_key"), column.line(), tight, most)


def _said(section: Section, key: str) -> bool | None:
    return section.flag(key) if key in section.content else None


def _read_bounds(column: Section) -> tuple[Bound | None, Bound | None]:
    for key, other in (("min", "max"), ("max", "min")):
        if key in column.content and other not in column.content:
            column.problem(key, f'{column.title} has "{key}" without "{other}"', "write both, or neither")
    lower, upper = column.bound("min"), column.bound("max")
    if lower is not None and upper is not None:
        if type(lower) is not type(upper):
            column.problem("max", f'"min" and "max" in {column.title} are of different types')
        elif lower > upper:  # type: ignore[operator]  # both are of one type
            column.problem("min", f'"min" in {column.title} is greater than "max"')
    return lower, upper
