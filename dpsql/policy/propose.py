"""Guesses the unit of each table from the schema. These are only guesses: the owner decides.

It looks for one table of people; rows of other tables belong to a person through a reference. Where foreign keys are
not declared, as in files, names are used instead: "o_custkey" refers to "customer", whose key is "c_custkey".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from dpsql.policy.model import Bound, ColumnSchema, DatabaseSchema, TableSchema
from dpsql.policy.problems import quoted
from dpsql.types import Kind, Type

Source = tuple[str, ...]  # schema and table

# Names of tables of people, the likeliest first.
_PEOPLE = (
    "person patient customer client user member citizen resident individual participant subject respondent student"
    " pupil subscriber passenger guest employee worker applicant beneficiary borrower cardholder policyholder tenant"
    " donor voter driver rider player child household account contact profile"
).split()
# Words that do not describe a table's contents: "customer_data" is a table of customers.
_EMPTY_WORDS = frozenset("data detail dim fact info information list master record tab table tbl".split())
_IRREGULAR = {"people": "person", "persons": "person", "children": "child"}
_KEY_SUFFIXES = ("uuid", "number", "key", "id", "no", "nr")
_SHORTEST_STEM = 3  # "cust" abbreviates "customer"; fewer letters are ambiguous


@dataclass(frozen=True, slots=True)
class Reference:
    """A column whose values name rows of another table."""

    table: Source
    column: str
    target: Source
    target_column: str
    declared: bool = True  # a foreign key; else a guess from names


@dataclass(frozen=True, slots=True)
class SchemaDetails:
    """Details from the engine's catalog that only the draft needs."""

    primary_keys: Mapping[Source, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    references: tuple[Reference, ...] = ()
    enums: Mapping[tuple[Source, str], tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    # What a CHECK allows: texts of a list, or a range.
    listed: Mapping[tuple[Source, str], tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    bounds: Mapping[tuple[Source, str], tuple[Bound, Bound]] = field(default_factory=lambda: MappingProxyType({}))
    comments: Mapping[tuple[Source, str | None], str] = field(default_factory=lambda: MappingProxyType({}))
    parts: frozenset[Source] = frozenset()  # partitions: their rows are those of another table


@dataclass(frozen=True, slots=True)
class Proposal:
    """The proposed unit of a table: the column `unit`, or the owner of the row that `via` refers to, or unknown."""

    table: TableSchema
    why: str
    unit: str | None = None
    via: Reference | None = None
    key: str | None = None  # identifies the rows of this table
    also: tuple[str, ...] = ()  # further columns that identify a person, who is not protected by this unit
    references: tuple[Reference, ...] = ()

    holds_people: bool = False  # by its name

    @property
    def one_row_per_unit(self) -> bool:
        """Whether there is one row per unit: enforced by the engine, or guessed from the name."""
        return self.unit is not None and (self.unit == self.key or frozenset({self.unit}) in self.table.unique)


def propose(schema: DatabaseSchema, details: SchemaDetails) -> list[Proposal]:
    """A proposal for each table that can be declared: people first, then what belongs to them, then the rest."""
    tables = {
        source: table
        for source, table in schema.tables.items()
        if not table.is_view and not table.obstacle and source not in details.parts
    }
    keys = {source: _key(table, details) for source, table in tables.items()}
    references = list(_references(tables, keys, details))
    people = _table_of_people(tables, keys, references)
    units = _units_by_reference(people, references) if people is not None else _units_by_name(tables)
    chains = _chains(set(units), references)
    proposals = []
    for source, table in tables.items():
        unit, why, also = units.get(source, (None, "", ()))
        via = chains.get(source)
        if via is not None:
            why = f"belongs to a person through {quoted(via.target[-1])}"
        mine = tuple(reference for reference in references if reference.table == source)
        holds_people = _person_word(table) is not None
        proposals.append(Proposal(table, why, unit, via, keys[source], also, mine, holds_people))
    return sorted(
        proposals, key=lambda p: (people is None or p.table.source != people[0], p.unit is None, p.via is None)
    )


# --- names ---


def words_of(name: str) -> list[str]:
    """The words of a name: "patient" and "id" for both "PatientID" and "patient_id"."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return re.findall(r"[^\W_]+", apart)


def words_of_columns(table: TableSchema) -> dict[str, list[str]]:
    """The words of each column's name, without a short prefix that all columns share, as in "c_name", "c_phone"."""
    words = {name: words_of(name) for name in table.columns}
    first = {found[0] if len(found) > 1 else None for found in words.values()}
    if len(words) > 1 and len(first) == 1 and (prefix := first.pop()) is not None and len(prefix) < _SHORTEST_STEM:
        return {name: found[1:] for name, found in words.items()}
    return words


def _singular(word: str) -> str:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _thing(table: TableSchema) -> list[str]:
    """What a row of the table is called, in words: ["order", "item"]."""
    words = [_singular(word) for word in words_of(table.source[-1])]
    return [word for word in words if word not in _EMPTY_WORDS] or words


def _person_word(table: TableSchema) -> str | None:
    thing = _thing(table)
    return thing[-1] if thing and thing[-1] in _PEOPLE else None


def _stem(name: str) -> str | None:
    """What a key's name refers to: "custkey" to "cust", "id" to nothing (""); None if it is not a key's name."""
    for suffix in _KEY_SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return None


def _names_thing(stem: str, thing: str) -> bool:
    return len(stem) >= _SHORTEST_STEM and thing.startswith(stem)


# --- keys and references ---


def _key(table: TableSchema, details: SchemaDetails) -> str | None:
    """The column that identifies the rows of a table: the primary key, else one named like a key, else a unique one.

    Names take precedence over uniqueness: an e-mail address may be unique, but other tables refer to "id".
    """
    primary = details.primary_keys.get(table.source)
    if primary is not None:
        return primary[0] if len(primary) == 1 else None
    thing = "".join(_thing(table))
    stems = {name: _stem("".join(words)) for name, words in words_of_columns(table).items()}
    bare = [name for name, stem in stems.items() if stem == ""]
    own = [name for name, stem in stems.items() if stem is not None and _names_thing(stem, thing)]
    unique = [name for name in table.columns if frozenset({name}) in table.unique]
    return next(iter([*bare, *own, *unique]), None)


def _references(
    tables: Mapping[tuple[str, str], TableSchema], keys: Mapping[tuple[str, str], str | None], details: SchemaDetails
) -> Iterator[Reference]:
    yield from details.references
    known = {(reference.table, reference.column) for reference in details.references}
    for source, table in tables.items():
        for name, words in words_of_columns(table).items():
            if (source, name) in known:
                continue
            for target, key in keys.items():
                if key is None or target == source:
                    continue
                other = tables[target]
                if _fits(words, other, key) and _comparable(table.columns[name], other.columns[key]):
                    yield Reference(source, name, target, key, declared=False)


def _fits(words: list[str], target: TableSchema, key: str) -> bool:
    """Whether a column with these words refers to rows of the target: by its name, or by the name of its key."""
    name, key_name = "".join(words), "".join(words_of_columns(target)[key])
    stem, key_stem = _stem(name), _stem(key_name)
    if not stem:
        return False
    thing = _thing(target)
    things = {"".join(thing), thing[-1] if thing[-1] in _PEOPLE else ""}  # "user_id" names rows of "app_users"
    like_the_key = name == key_name and bool(key_stem) and _names_thing(key_stem or "", "".join(thing))
    with_a_role = len(words) > 2 and _stem("".join(words[-2:])) in things  # "sender_patient_id"
    return stem in things or like_the_key or with_a_role


def _comparable(left: ColumnSchema, right: ColumnSchema) -> bool:
    return _can_be_unit(left) and _can_be_unit(right) and _class(left.type) == _class(right.type)


def _can_be_unit(column: ColumnSchema) -> bool:
    """Equal values of the type are the same value."""
    return column.type is not None and column.type.kind not in (Kind.BOOLEAN, Kind.DOUBLE)


def _class(type_: Type | None) -> Kind | None:
    return None if type_ is None else Kind.INTEGER if type_.kind is Kind.DECIMAL else type_.kind


# --- units ---

_Unit = tuple[str, str, tuple[str, ...]]  # the column, the reason, and further columns that identify a person


def _table_of_people(
    tables: Mapping[tuple[str, str], TableSchema],
    keys: Mapping[tuple[str, str], str | None],
    references: Sequence[Reference],
) -> tuple[Source, str] | None:
    """The table of people that most others refer to, with its key."""
    found: list[tuple[int, int, Source, str]] = []
    for source, table in tables.items():
        word, key = _person_word(table), keys[source]
        if word is not None and key is not None and _can_be_unit(table.columns[key]):
            referring = {reference.table for reference in references if reference.target == source} - {source}
            found.append((-len(referring), _PEOPLE.index(word), source, key))
    return min(found)[2:] if found else None


def _units_by_reference(people: tuple[Source, str], references: Sequence[Reference]) -> dict[Source, _Unit]:
    source, key = people
    units: dict[Source, _Unit] = {source: (key, "a table of people", ())}
    for reference in references:
        if (reference.target, reference.target_column) != people or reference.table == source:
            continue
        if reference.table in units:
            column, why, also = units[reference.table]
            units[reference.table] = (column, why, (*also, reference.column))
        else:
            why = f"refers to {quoted(source[-1])}" + ("" if reference.declared else ", by its name")
            units[reference.table] = (reference.column, why, ())
    return units


def _units_by_name(tables: Mapping[tuple[str, str], TableSchema]) -> dict[Source, _Unit]:
    """Without a table of people: the columns named like a person's key, of the sort that most tables have."""
    found: dict[str, dict[Source, str]] = {}
    for source, table in tables.items():
        for name, words in words_of_columns(table).items():
            joined = "".join(words)
            if _stem(joined) in _PEOPLE and _can_be_unit(table.columns[name]):
                found.setdefault(joined, {}).setdefault(source, name)
    if not found:
        return {}
    counted = Counter({joined: len(columns) for joined, columns in found.items()})
    chosen = found[counted.most_common(1)[0][0]]
    return {source: (name, "named like a person's key", ()) for source, name in chosen.items()}


def _chains(owned: set[Source], references: Sequence[Reference]) -> dict[Source, Reference]:
    """For each table without a unit, the reference through which its rows belong to a person."""
    chains: dict[Source, Reference] = {}
    found = True
    while found:
        found = False
        for reference in references:
            if reference.table not in owned and reference.target in owned and reference.table != reference.target:
                chains[reference.table] = reference
                owned.add(reference.table)
                found = True
    return chains
