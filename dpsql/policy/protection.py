"""Who is protected: the kind of unit, the path to the owner of each private table's rows, and which tables are public.

It is part of the guarantee of a total, so the ledger records it (`dpsql.ledger.protections`). Bounds, limits and prices
are not: the noise of each answer fits the declarations at the time of the query.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpsql.policy.model import Table, TableSchema

Subject = tuple[str, ...]  # schema and table in the database; the empty one is the dataset
DATASET: Subject = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """A subject whose record in the ledger differs from the policy."""

    subject: Subject
    recorded: str
    declared: str

    def __str__(self) -> str:
        before, now = units_text(self.recorded), units_text(self.declared)
        return f"{subject_text(self.subject)}: {before} in the ledger, {now} in the policy"


@dataclass(frozen=True, slots=True)
class Protection:
    """What is protected, by subject, each as one canonical text."""

    units: Mapping[Subject, str] = field(default_factory=lambda: MappingProxyType({}))

    def differences(self, recorded: Mapping[Subject, str]) -> list[Difference]:
        """Where this differs from what was recorded. A subject that only one of the two has is not a difference.

        Claim: without a difference, whoever this protects in a table was protected in it by every answer that was
        calibrated to `recorded`.
        Because: the texts name the owner's columns, their kind, and all tables and keys on the way to them, as the
        database spells them; or say that the table is public. A table that was not recorded was never asked about.
        Needs: names that keep their meaning in the database; a change of meaning cannot be detected here.
        """
        return [
            Difference(subject, recorded[subject], units)
            for subject, units in self.units.items()
            if recorded.get(subject, units) != units
        ]


def protection_of(tables: Mapping[str, Table], schemas: Mapping[str, TableSchema]) -> Protection:
    """The protection that a policy declares for the tables of a database; both by the declared names."""
    by_source = {schema.source: schema for schema in schemas.values()}
    units: dict[Subject, str] = {}
    kinds: set[str] = set()
    for table in tables.values():
        if table.owner is None:
            units[table.source] = _text([])
            continue
        assert table.owner_type is not None
        kinds.add(table.owner_type.kind.value)
        path, here = [], table.source
        for step in table.path:
            path.append(
                {
                    "via": [_stored(name, by_source[here]) for name in step.via],
                    "table": step.source,
                    "key": [_stored(name, by_source[step.source]) for name in step.key],
                }
            )
            here = step.source
        # Lists within a list, so that several owners, or owners of several columns, can be written the same way.
        units[table.source] = _text([{"columns": [_stored(table.owner, by_source[here])], "path": path}])
    if kinds:
        units[DATASET] = _text(sorted(kinds))
    return Protection(MappingProxyType(units))


def subject_text(subject: Subject) -> str:
    return f'table "{".".join(subject)}"' if subject else "the kind of unit"


def units_text(units: str) -> str:
    """A recorded text as the owner reads it."""
    found = json.loads(units)
    if not found:
        return "public"
    return " and ".join(each if isinstance(each, str) else _owner_text(each) for each in found)


def subject_name(subject: Subject) -> str:
    return json.dumps(subject)


def subject_of(name: str) -> Subject:
    return tuple(map(str, json.loads(name)))


def _owner_text(owner: Mapping[str, list[str] | list[Mapping[str, list[str]]]]) -> str:
    steps = [
        f"{', '.join(step['via'])} → {'.'.join(step['table'])}.{', '.join(step['key'])}"
        for step in owner["path"]
        if not isinstance(step, str)
    ]
    columns = ", ".join(column for column in owner["columns"] if isinstance(column, str))
    return f'unit "{" → ".join([*steps, columns])}"'


def _stored(name: str, schema: TableSchema) -> str:
    """A column as the database spells it: other spellings in a policy mean the same."""
    if name in schema.columns:
        return name
    (stored,) = (each for each in schema.columns if each.casefold() == name.casefold())
    return stored


def _text(content: object) -> str:
    return json.dumps(content, sort_keys=True)
