"""Encoding of released answers for the ledger, and which of them a policy keeps."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any, cast

import numpy as np

from dpsql.errors import OperationalError
from dpsql.policy.fingerprint import facts_of
from dpsql.policy.model import Catalog
from dpsql.privacy.accounting import Price
from dpsql.release.identity import FORMAT, Reads
from dpsql.tables import Integers, NoisyTable, columns_of
from dpsql.types import Value

MANY = 100  # from this many integers on, they are written as bytes


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """A noisy table, with the identity that later stages refer to."""

    instance: str
    table: NoisyTable
    # The 95 % margin and the standard deviation of each sum, if they differ from those of its own noise.
    steps: tuple[float, ...] | None = None
    deviations: tuple[float, ...] | None = None


def encode(noisy: StoredAnswer, reads: Reads = (), *, declared: bool = False) -> bytes:
    """The encoded answer, with the declarations that must not change if it is to be found again.

    These are the declarations that it reads and, where all its keys are `declared`, the number of possible keys.
    """
    # Column by column: many short lists are slow to parse.
    document: dict[str, object] = {
        "format": FORMAT,
        "reads": [[each.source, each.column, each.facts] for each in reads],
        "declared": declared,
        "instance": noisy.instance,
        "rows": len(noisy.table),
        "columns": [_written_keys(column) for column in columns_of(noisy.table.keys)],
        "sums": [_written(column) for column in noisy.table.sums],
    }
    if noisy.steps is not None:
        document["steps"] = noisy.steps
    if noisy.deviations is not None:
        document["deviations"] = noisy.deviations
    return json.dumps(document, separators=(",", ":")).encode()


def decode(stored: bytes) -> StoredAnswer:
    """The decoded answer; raises OperationalError if it cannot be read."""
    try:
        return _decoded(stored)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise OperationalError(
            "a stored answer cannot be read",
            hint="SET dpsql.fresh = on buys a new answer. The owner checks for damage with: dpsql ledger verify",
        ) from None


def _decoded(stored: bytes) -> StoredAnswer:
    document = json.loads(stored)
    if "columns" in document:
        columns = [_read_keys(column) for column in document["columns"]]
        keys = tuple(zip(*columns, strict=True)) or ((),) * document["rows"]
    else:  # the format of earlier versions
        keys = tuple(tuple(_untagged_all(key)) for key in document["keys"])
    sums = tuple(_read(column) for column in document["sums"])
    steps, deviations = (
        None if (found := document.get(name)) is None else tuple(found) for name in ("steps", "deviations")
    )
    return StoredAnswer(document["instance"], NoisyTable(keys, sums), steps, deviations)


def _written_keys(values: Sequence[Value]) -> object:
    if len(values) >= MANY and set(map(type, values)) == {int}:
        with suppress(OverflowError):
            return _written(np.array(values, dtype=np.int64))
    return _tagged_all(values)


def _read_keys(stored: Any) -> Sequence[Value]:
    keys: Sequence[Value] = _read(stored).tolist() if isinstance(stored, dict) else _untagged_all(stored)
    return keys


def _written(column: Integers) -> object:
    """Integers: a few as a list, many as bytes of the smallest sufficient width."""
    if len(column) < MANY:
        return column.tolist()
    least, most = column.min(), column.max()
    width = next(size for size in (1, 2, 4, 8) if -(2 ** (8 * size - 1)) <= least and most < 2 ** (8 * size - 1))
    return {"width": width, "bytes": b64encode(column.astype(f"<i{width}").tobytes()).decode()}


def _read(stored: Any) -> Integers:
    if isinstance(stored, dict):
        return np.frombuffer(b64decode(stored["bytes"]), dtype=f"<i{stored['width']}").astype(np.int64)
    return np.asarray(stored, dtype=np.int64)


def grains_of(price: Price) -> list[int]:
    """A price in keys and records; one that is not pure has the format from before pure prices existed."""
    return [price.loss, price.delta] if price.pure is None else [price.loss, price.delta, price.pure]


_PLAIN = frozenset((bool, int, float, str, type(None)))  # types that JSON distinguishes by itself


def tagged_keys(keys: Sequence[tuple[Value, ...]]) -> Sequence[Sequence[object]]:
    if _PLAIN.issuperset(map(type, chain.from_iterable(keys))):
        return keys
    return [_tagged_all(key) for key in keys]


def _tagged_all(values: Sequence[Value]) -> Sequence[object]:
    return values if _PLAIN.issuperset(map(type, values)) else [_tagged(value) for value in values]


def _untagged_all(values: Sequence[object]) -> Sequence[Value]:
    if _PLAIN.issuperset(map(type, values)):
        return cast(Sequence[Value], values)
    return [_untagged(value) for value in values]


def _tagged(value: Value) -> object:
    match value:
        case Decimal():
            return {"n": str(value)}
        case datetime():
            return {"t": value.isoformat()}
        case date():
            return {"d": value.isoformat()}
        case _:
            return value


def _untagged(value: object) -> Value:
    match value:
        case {"n": str(text)}:
            return Decimal(text)
        case {"t": str(text)}:
            return datetime.fromisoformat(text)
        case {"d": str(text)}:
            return date.fromisoformat(text)
        case bool() | int() | float() | str() | None:
            return value
        case _:
            raise ValueError("a stored answer cannot be read")


# ------------------------------------------------------------
# Which stored answers are still found under a policy.


@dataclass(frozen=True, slots=True)
class StillFound:
    """How many stored answers are found under a policy, and which of its declarations invalidate others."""

    found: int
    lost: int
    older: int  # stored by versions with another kind of key
    changed: tuple[tuple[str, ...], ...]  # tables, and columns of tables; the empty name: the number of declared keys


def still_found(stored: Iterable[tuple[datetime, bytes]], catalog: Catalog, replay_days: float | None) -> StillFound:
    """How many of these a query under this policy would find.

    Claim: an answer that is lost has another identity under the policy; one that is found has the same.
    Because: it is the identity of its query and of the declarations that this reads (`release.identity`), which are
    stored with it, as are those of the answers it is derived from. Declared keys stay so while so many are allowed.
    Needs: nothing more. Keys that were too many to be declared may become declared when more are allowed, and then the
    answer is lost though it is counted as found.
    """
    oldest = None if replay_days is None else datetime.now(UTC) - timedelta(days=replay_days)
    facts = _facts_of(catalog)
    found = lost = older = 0
    changed: dict[tuple[str, ...], None] = {}
    for created, payload in stored:
        document = json.loads(payload)
        if "instance" not in document or (oldest is not None and created < oldest):
            continue
        if document.get("format") != FORMAT:
            older += 1
            continue
        parts = [((*source, column) if column else tuple(source), known) for source, column, known in document["reads"]]
        others = [name for name, known in parts if facts.get(name) != known]
        if document["declared"] and document["rows"] > catalog.max_cells:
            others.append(())
        changed |= dict.fromkeys(others)
        lost += bool(others)
        found += not others
    return StillFound(found, lost, older, tuple(changed))


def _facts_of(catalog: Catalog) -> dict[tuple[str, ...], str]:
    found: dict[tuple[str, ...], str] = {}
    for table in catalog.tables.values():
        facts = facts_of(table)
        found[table.source] = facts.table
        found |= {(*table.source, column): known for column, known in facts.columns.items()}
    return found
