"""Drafts a first policy file, with explanatory comments. Decisions left to the owner are marked TODO.

The draft loads as it is, and exposes nothing on a guess: a table whose rows may belong to people, but whose unit is
unknown, is commented out, and so does not exist for analysts until the owner decides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Literal, assert_never

from dpsql.policy.columns import known_type
from dpsql.policy.model import Bound, ColumnSchema, DatabaseSchema, TableSchema
from dpsql.policy.problems import quoted
from dpsql.policy.propose import Proposal, SchemaDetails, Source, words_of_columns
from dpsql.policy.sections import header
from dpsql.types import Kind

_MARK = re.compile(r"# TODO: ")
_LONGEST_COMMENT = 100
_MOST_LISTED = 50  # values of an enum; a longer list would hide the rest of the file

# Columns that identify people and are useless for counting.
_IDENTIFYING = frozenset(
    "address comment comments email fax firstname fullname iban lastname login mail message mobile note notes passport"
    " password phone remark remarks ssn street surname telephone text token username".split()
)
_NAMES_OF_PEOPLE = frozenset("family first full given last maiden middle nick user".split())
# Numbers that are identifiers, not quantities.
_LABELS = ("code", "id", "key", "nr", "number", "postcode", "uuid", "zip")

# What a column is for.
Sort = Literal["unknown", "row", "person", "reference", "boolean", "identifying", "text", "label", "bounded"]


@dataclass(frozen=True, slots=True)
class Suggestions:
    """Bounds that were read from the data at the owner's request."""

    bounds: Mapping[tuple[Source, str], tuple[Bound, Bound]] = field(default_factory=lambda: MappingProxyType({}))
    rows: Mapping[Source, int] = field(default_factory=lambda: MappingProxyType({}))


def collect(
    proposals: Sequence[Proposal],
    extremes: Callable[[Proposal, str], tuple[Bound, Bound] | None],
    rows_of_most_units: Callable[[Source, str], int | None],
) -> Suggestions:
    """Ask an engine for the bounds of every column and unit that a draft proposes."""
    bounds: dict[tuple[Source, str], tuple[Bound, Bound]] = {}
    rows: dict[Source, int] = {}
    for proposal in proposals:
        if proposal.unit is None:
            continue
        source = proposal.table.source
        for name in wants_bounds(proposal):
            if (found := extremes(proposal, name)) is not None:
                bounds[source, name] = found
        if not proposal.one_row_per_unit and (most := rows_of_most_units(source, proposal.unit)) is not None:
            rows[source] = round_up(most)
    return Suggestions(bounds, rows)


def marks(text: str) -> list[tuple[int, str]]:
    """The lines of a policy file that are still marked TODO, with their numbers."""
    return [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if _MARK.search(line)]


def wants_bounds(proposal: Proposal) -> list[str]:
    """The columns of a private table for which the owner should choose min and max."""
    return [name for name, sort in _sorts(proposal).items() if sort == "bounded"]


def draft(
    url: str,
    schema: DatabaseSchema,
    details: SchemaDetails,
    proposals: Sequence[Proposal],
    suggestions: Suggestions | None = None,
    ledger: str | None = None,
) -> str:
    """The text of a policy file for a database. Bounds come only from a CHECK, or from the data if they were read.

    A ledger is named where none can be kept beside the database.
    """
    given = suggestions or Suggestions()
    source = "the schema; no row was read" if suggestions is None else "the schema and, as asked, extremes of the data"
    place = "" if ledger is None else _LEDGER.format(ledger=quoted(ledger))
    lines = [_HEAD.format(source=source, url=quoted(url), ledger=place)]
    followed = _followed(schema, proposals)
    for proposal in proposals:
        lines += ["", *_table(proposal, schema, details, given, followed)]
    for table in schema.tables.values():
        if table.is_view:
            lines += [
                "",
                f"# {quoted(policy_name(table, schema))} is a view: declare the tables that it reads instead.",
            ]
        elif table.obstacle is not None:
            lines += ["", f"# {quoted(policy_name(table, schema))} {table.obstacle}."]
        elif table.source in details.parts:
            lines += ["", f"# {quoted(policy_name(table, schema))} is a part of another table, which has its rows."]
    lines.append(_FOOT)
    # The one character that JSON does not escape and TOML does not accept.
    return "\n".join(lines).replace("\x7f", "\\u007f")


_HEAD = """\
# Who is protected, and what analysts may ask. Drafted from {source}.
# Lines marked TODO need your decision; "dpsql check" lists them. A table or a column that is
# not declared here does not exist for analysts.

[database]
url = {url}
{ledger}
[privacy]
# How much all answers together may ever reveal about one person. 1 is strict, 10 is weak.
epsilon = 4.0
# Roughly the probability that this fails for someone: far below 1 / (number of people).
delta = 1e-6
# The part of delta that pays for GROUP BY over undeclared keys. By default half of it.
# key_delta = 5e-7
# The price of a query, unless the analyst sets another. Lower: more questions, more noise.
query_epsilon = 0.1

# unit               the column that identifies the owner of a row; all rows of one unit are protected together.
# max_rows_per_unit  the most rows of one unit that count. Higher: less is cut off, more noise.
# min, max           values are clamped to these before they are summed: an instruction, not a promise.
#                    Wider: less is cut off, more noise. Analysts see them, so take them from what you know, not
#                    from the data.
# values             every key to expect. GROUP BY returns each of them, zeros included; other rows are not counted.
# {{}}                 may be filtered and grouped by; keys that few units have are held back."""

_LEDGER = """\
# Records all charges. Keep it: without it the budget starts again. The first query creates it, with --new-ledger.
ledger = {ledger}
"""

_FOOT = """
# Who may ask. All users together spend the dataset's epsilon.
[users.analyst]
# epsilon = 1.0      # this user's allowance
"""


# --- tables ---


def policy_name(table: TableSchema, schema: DatabaseSchema) -> str:
    """The name an analyst writes: in lower case, so that it needs no quotation marks, unless another table has that
    name.

    Where case matters it is kept, since existing queries use it.
    """
    names = [_qualified(source, schema).lower() for source in schema.tables]
    name = _qualified(table.source, schema)
    is_free = name.isascii() and names.count(name.lower()) == 1
    return name.lower() if is_free and not table.case_matters else name


def _qualified(source: Source, schema: DatabaseSchema) -> str:
    return source[-1] if source[0] == schema.default_schema else ".".join(source)


def _followed(schema: DatabaseSchema, proposals: Sequence[Proposal]) -> set[Source]:
    """The tables whose reference leads to an owner by keys that the engine keeps unique."""
    owned: set[Source] = {proposal.table.source for proposal in proposals if proposal.unit is not None}
    waiting = {proposal.table.source: proposal.via for proposal in proposals if proposal.via is not None}
    while True:
        found = {
            source
            for source, via in waiting.items()
            if source not in owned
            and via.target in owned
            and frozenset({via.target_column}) in schema.tables[via.target[0], via.target[1]].unique
        }
        if not found:
            return owned
        owned |= found


def _table(
    proposal: Proposal,
    schema: DatabaseSchema,
    details: SchemaDetails,
    suggestions: Suggestions,
    followed: set[Source],
) -> Iterator[str]:
    name = policy_name(proposal.table, schema)
    title = header(("tables", name))
    if any("." in part for part in proposal.table.source):
        yield f"# Table {quoted(name)} has a dot in its name, which a policy cannot write. Rename it to declare it."
    elif proposal.unit is not None:
        unit = quoted(_spelled(proposal.unit, proposal.table))
        yield from _private_table(proposal, unit, title, details, suggestions)
    elif proposal.via is not None:
        target = schema.tables[proposal.via.target[0], proposal.via.target[1]]
        via, key = _spelled(proposal.via.column, proposal.table), _spelled(proposal.via.target_column, target)
        other = quoted(policy_name(target, schema))
        unit = f"{{ via = {quoted(via)}, table = {other}, key = {quoted(key)} }}"
        if proposal.table.source in followed:
            yield from _private_table(proposal, unit, title, details, suggestions)
            return
        yield f"# TODO: does a row of {quoted(name)} belong to the owner of a row of {other}?"
        yield f"# If {quoted(key)} is unique there, and that table declared, remove the # and add its columns."
        yield f"# [{title}]"
        yield f"# unit = {unit}"
    else:
        yield f"# TODO: is {quoted(name)} public? If everybody may see every row, remove the # below."
        if proposal.holds_people:
            yield "# It seems to hold people. A policy protects one kind of unit: these would not be protected."
        yield '# If each row belongs to one unit, name its column instead: unit = "COLUMN".'
        yield f"# [{title}]"
        yield "# public = true"


def _private_table(
    proposal: Proposal, unit: str, title: str, details: SchemaDetails, suggestions: Suggestions
) -> Iterator[str]:
    yield from _comment(details, proposal.table.source, None)
    yield f"[{title}]"
    yield f"unit = {unit}  # {proposal.why}"
    if proposal.also:
        others = " and ".join(quoted(_spelled(name, proposal.table)) for name in proposal.also)
        yield f"# TODO: {others} may name people too, whom this table does not protect. Is {unit} the right unit?"
    if not proposal.one_row_per_unit:
        rows = suggestions.rows.get(proposal.table.source)
        question = "how many rows of one unit shall count?" if rows is None else "confirm; suggested from the data"
        yield f"max_rows_per_unit = {rows or 1}  # TODO: {question}"
    yield f"[{title}.columns]"
    sorts = _sorts(proposal)
    keys = {name: header((_spelled(name, proposal.table),)) for name in sorts}
    width = max(map(len, keys.values()), default=0)
    for name, sort in sorts.items():
        yield from _comment(details, proposal.table.source, name)
        yield _column(keys[name].ljust(width), sort, proposal, name, details, suggestions)


def _comment(details: SchemaDetails, source: Source, column: str | None) -> Iterator[str]:
    """The database's own comment on a table or a column, on one line."""
    words = " ".join(details.comments.get((source, column), "").split())
    if words:
        # Written as a TOML string, a comment cannot contain its own end, nor one of our TODO marks.
        text = quoted(words)[1:-1].replace("TODO:", "TODO")
        yield f"# {text if len(text) <= _LONGEST_COMMENT else text[: _LONGEST_COMMENT - 1] + '…'}"


def _spelled(name: str, table: TableSchema) -> str:
    """In lower case, so that it needs no quotation marks, unless another column has that name; as for tables."""
    same = [other for other in table.columns if other.lower() == name.lower()]
    return name.lower() if name.isascii() and len(same) == 1 and not table.case_matters else name


# --- columns ---


def _sorts(proposal: Proposal) -> dict[str, Sort]:
    """What each column is for. The unit itself needs no declaration."""
    words = words_of_columns(proposal.table)
    return {
        name: _sort(column, words[name], proposal)
        for name, column in proposal.table.columns.items()
        if name != proposal.unit and (proposal.via is None or name != proposal.via.column)
    }


def _sort(column: ColumnSchema, words: list[str], proposal: Proposal) -> Sort:
    type_ = known_type(column)
    if type_ is None:
        return "unknown"
    if column.name in proposal.also:
        return "person"
    if column.name == proposal.key or frozenset({column.name}) in proposal.table.unique:
        return "row"
    if any(reference.column == column.name for reference in proposal.references):
        return "reference"
    match type_.kind:
        case Kind.BOOLEAN:
            return "boolean"
        case Kind.TEXT:
            return "identifying" if _is_identifying(words) else "text"
        case Kind.INTEGER | Kind.DECIMAL if words and words[-1].endswith(_LABELS):
            return "label"
        case _:
            return "bounded"


def _is_identifying(words: list[str]) -> bool:
    if not words:
        return False
    return words[-1] in _IDENTIFYING or (words[-1] == "name" and set(words[:-1]) <= _NAMES_OF_PEOPLE)


def _column(
    key: str, sort: Sort, proposal: Proposal, name: str, details: SchemaDetails, suggestions: Suggestions
) -> str:
    source, column = proposal.table.source, proposal.table.columns[name]
    match sort:
        case "unknown":
            return f"# {key.rstrip()}: its type {quoted(column.native)} is not supported"
        case "row":
            return f"# {key} = {{}}  # left out: identifies single rows"
        case "identifying":
            return f"# {key} = {{}}  # left out: may identify a person"
        case "person":
            return f"# {key} = {{}}  # left out: identifies a person who is not the unit"
        case "reference":
            target = next(reference.target for reference in proposal.references if reference.column == name)
            return f"{key} = {{}}  # names a row of {quoted(target[-1])}"
        case "boolean":
            return f"{key} = {{ values = [false, true] }}"
        case "text":
            if (listed := details.listed.get((source, name))) is not None:
                return f"{key} = {_values(listed, 'its CHECK allows no others')}"
            return f"{key} = {_values(details.enums.get((source, name)))}"
        case "label":
            return f"{key} = {{}}  # to add it up, declare min and max"
        case "bounded":
            if (checked := details.bounds.get((source, name))) is not None:
                low, high = map(_bound_text, checked)
                return f"{key} = {{ min = {low}, max = {high} }}  # from its CHECK"
            bounds = suggestions.bounds.get((source, name))
            if bounds is None:
                return f"{key} = {{}}  # TODO: {_question(column)}"
            low, high = map(_bound_text, bounds)
            return f"{key} = {{ min = {low}, max = {high} }}  # TODO: confirm; suggested from the data"
        case _:
            assert_never(sort)


def _values(enum: tuple[str, ...] | None, why: str = "all values of its type") -> str:
    if enum is None or not enum:
        return '{}  # or the keys to expect: { values = ["…", "…"] }'
    if len(enum) > _MOST_LISTED:
        return f'{{}}  # an enum of {len(enum)} values; list the keys to expect: {{ values = ["…", "…"] }}'
    return f"{{ values = [{', '.join(map(quoted, enum))}] }}  # {why}"


def _question(column: ColumnSchema) -> str:
    if column.type is not None and column.type.is_temporal:
        return "first and last day to expect, as in { min = 2020-01-01, max = 2029-12-31 }"
    return "smallest and largest value to expect, as in { min = 0, max = 100 }"


def _bound_text(bound: Bound) -> str:
    if isinstance(bound, date):
        return bound.isoformat()
    if bound.denominator == 1:
        return f"{bound.numerator:_}"
    return f"{(Decimal(bound.numerator) / Decimal(bound.denominator)).normalize():f}"


# ------------------------------------------------------------
# Rounds the extremes of a column outward to round numbers, which reveal less.

_PARTS = 10  # a range is rounded to about a tenth of its width
_LARGEST = 10**15  # beyond it a sum of many rows would not fit into 64 bits
_SMALLEST = Fraction(1, 10**9)


def round_outward(
    low: int | Decimal | float | date | datetime, high: int | Decimal | float | date | datetime
) -> tuple[Fraction | date, Fraction | date] | None:
    """Bounds around both; whole years for dates. None if they are too large to be of use."""
    if isinstance(low, date) and isinstance(high, date):
        return date(low.year, 1, 1), date(high.year, 12, 31)
    if isinstance(low, date) or isinstance(high, date):
        raise TypeError("bounds are of one type")
    smallest, largest = Fraction(low), Fraction(high)
    if max(abs(smallest), abs(largest)) > _LARGEST:
        return None
    whole = isinstance(low, int) and isinstance(high, int)
    step = _step((largest - smallest) or max(abs(largest), Fraction(1)), whole)
    lower, upper = math.floor(smallest / step) * step, math.ceil(largest / step) * step
    return (lower, upper) if lower < upper else (lower, upper + step)


def round_up(count: int) -> int:
    """The next of 1, 2, 5, 10, 20, 50, …"""
    return int(_ladder(Fraction(count)))


def _step(width: Fraction, whole: bool) -> Fraction:
    step = _ladder(width / _PARTS)
    return max(step, Fraction(1)) if whole else step


def _ladder(least: Fraction) -> Fraction:
    """The smallest of 1, 2, 5 times a power of ten that is not below `least`."""
    power = Fraction(10) ** math.floor(math.log10(max(least, _SMALLEST)))
    return next((power * part for part in (1, 2, 5) if power * part >= least), power * 10)
