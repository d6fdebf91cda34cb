"""Tells whether two policies, each joined with its database, would answer alike."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import date
from fractions import Fraction

from dpsql.policy.model import Column, Policy, Table
from dpsql.types import Type


def fingerprint_of(policy: Policy, tables: Mapping[str, Table]) -> str:
    """A hash of the declarations that the answer to a query depends on.

    Claim: under catalogs of one fingerprint, a query at a given price draws its answer in the same way.
    Because: the text holds all that the compiler reads, in one order, with the types of values kept apart.
    Needs: what is left out changes no answer. Totals and allowances only admit or refuse. That a unit is unique,
    or a column never NULL, only lets the compiler leave out steps that would do nothing. What small public tables hold
    shows in the keys and the SQL of a release, which name it too.
    """
    content = {
        "accounting": policy.privacy.accounting,
        "max_cells": policy.limits.max_cells,
        "tables": [_table_facts(tables[name]) for name in sorted(tables)],
        "views": [[name, policy.views[name].sql] for name in sorted(policy.views)],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=_exact_text).encode()).hexdigest()


def _table_facts(table: Table) -> dict[str, object]:
    return {
        "name": table.name,
        "source": table.source,
        "owner": table.owner,
        "owner_type": None if table.owner_type is None else _type_facts(table.owner_type),
        "path": [[step.via, step.source, step.key] for step in table.path],
        "max_rows_per_unit": table.max_rows_per_unit,
        "max_groups_per_unit": table.max_groups_per_unit,
        "columns": [_column_facts(column) for column in table.columns.values()],
    } | _said(table.tight)


def _column_facts(column: Column) -> dict[str, object]:
    return {
        "name": column.name,
        "type": _type_facts(column.type),
        "lower": column.lower,
        "upper": column.upper,
        "step": column.step,
        "values": column.values,
        "nullable_key": column.nullable_key,
        **({} if column.max_rows_per_value is None else {"max_rows_per_value": column.max_rows_per_value}),
    } | _said(column.tight)


def _said(tight: bool | None) -> dict[str, object]:
    """Nothing where nobody says anything: what was stored before there was anything to say is found again."""
    return {} if tight is None else {"tight": tight}


def _type_facts(column_type: Type) -> tuple[str, int, int]:
    return column_type.kind.value, column_type.precision, column_type.scale


def _exact_text(value: object) -> list[str]:
    """Values that JSON does not have, with their type: the text "2020-01-01" is not the date."""
    if isinstance(value, Fraction):
        return ["number", str(value)]
    if isinstance(value, date):
        return [type(value).__name__, value.isoformat()]
    raise TypeError(f"{type(value).__name__} has no canonical text")
