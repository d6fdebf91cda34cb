"""Released answers as the ledger keeps them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import chain
from typing import cast

import numpy as np

from dpsql.privacy.accounting import Price
from dpsql.tables import NoisyTable, columns_of
from dpsql.types import Value


@dataclass(frozen=True, slots=True)
class Known:
    """A noisy table and the identity under which later stages name it."""

    instance: str
    table: NoisyTable
    # The 95 % margin of each sum, and its deviation, where they are not those of the noise it was bought with.
    steps: tuple[float, ...] | None = None
    deviations: tuple[float, ...] | None = None


def encode(noisy: Known) -> bytes:
    # Column by column: many short lists take long to read.
    document: dict[str, object] = {
        "instance": noisy.instance,
        "rows": len(noisy.table),
        "columns": [_tagged_all(column) for column in columns_of(noisy.table.keys)],
        "sums": [column.tolist() for column in noisy.table.sums],
    }
    if noisy.steps is not None:
        document["steps"] = noisy.steps
    if noisy.deviations is not None:
        document["deviations"] = noisy.deviations
    return json.dumps(document, separators=(",", ":")).encode()


def decode(stored: bytes) -> Known:
    document = json.loads(stored)
    if "columns" in document:
        columns = [_untagged_all(column) for column in document["columns"]]
        keys = tuple(zip(*columns, strict=True)) or ((),) * document["rows"]
    else:  # as it was stored by versions before
        keys = tuple(tuple(_untagged_all(key)) for key in document["keys"])
    sums = tuple(np.asarray(column, dtype=np.int64) for column in document["sums"])
    steps, deviations = (
        None if (found := document.get(name)) is None else tuple(found) for name in ("steps", "deviations")
    )
    return Known(document["instance"], NoisyTable(keys, sums), steps, deviations)


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
