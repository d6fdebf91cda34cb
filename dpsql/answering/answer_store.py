"""Released answers as the ledger keeps them."""

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

MANY = 100  # whole numbers that are better written as bytes


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """A noisy table and the identity under which later stages name it."""

    instance: str
    table: NoisyTable
    # The 95 % margin of each sum, and its deviation, where they are not those of the noise it was bought with.
    steps: tuple[float, ...] | None = None
    deviations: tuple[float, ...] | None = None


def encode(noisy: StoredAnswer, reads: Reads = (), *, declared: bool = False) -> bytes:
    """The answer, with what an edit of the policy must leave alone for it to be found again.

    These are the declarations that it reads and, where all its keys are `declared`, that so many are possible.
    """
    # Column by column: many short lists take long to read.
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
    """The answer, as it was encoded; an error of ours where it cannot be read."""
    try:
        return _decoded(stored)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise OperationalError(
            "a stored answer cannot be read",
            hint="SET dpsql.fresh = on buys a new answer. The owner looks for damage with: dpsql ledger verify",
        ) from None


def _decoded(stored: bytes) -> StoredAnswer:
    document = json.loads(stored)
    if "columns" in document:
        columns = [_read_keys(column) for column in document["columns"]]
        keys = tuple(zip(*columns, strict=True)) or ((),) * document["rows"]
    else:  # as it was stored by versions before
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
    """Whole numbers: a few as they are, many as their bytes, in as few as hold the largest of them."""
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
    """A price as it stands in keys and records; as it did before there were pure ones, where it is none."""
    return [price.loss, price.delta] if price.pure is None else [price.loss, price.delta, price.pure]


_PLAIN = frozenset((bool, int, float, str, type(None)))  # that JSON tells apart by itself


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
# Which stored answers a policy leaves to be found.


@dataclass(frozen=True, slots=True)
class StillFound:
    """How many stored answers are found again under a policy, and which of its declarations lose others."""

    found: int
    lost: int
    older: int  # stored by versions that knew answers by something else
    changed: tuple[tuple[str, ...], ...]  # tables, and columns of tables; the empty name: how many keys are declared


def still_found(stored: Iterable[tuple[datetime, bytes]], catalog: Catalog, replay_days: float | None) -> StillFound:
    """How many of these a question under this policy would find.

    Claim: an answer that is lost has another identity under the policy; one that is found has the same.
    Because: it is the identity of its question and of the declarations that this reads (`release.identity`), which are
    stored with it, as are those of the answers it is made of. Declared keys are declared while so many are allowed.
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
