"""How noisy tables come into the rest of a query: as lists, or where there are many rows as a table of arrays.

Lists are parameters, each value of which is looked at by itself; a table takes half a millisecond to be made known, and
then costs nothing for a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpsql.types import Value

MANY = 2_000  # rows from which on a table is quicker

Array = npt.NDArray[np.generic]


def from_lists(index: int, types: Sequence[str]) -> str:
    """The noisy table of a measurement, of parameters that are lists."""
    columns = [f"unnest(CAST($r{index}_{i} AS {type_}[])) AS x{i}" for i, type_ in enumerate(types)]
    return f"r{index} AS (SELECT {', '.join(columns) or '0 AS one'})"


def from_table(index: int, types: Sequence[str]) -> str:
    """The same, of the table `n{index}`."""
    columns = [f"CAST(x{i} AS {type_}) AS x{i}" for i, type_ in enumerate(types)]
    return f"r{index} AS (SELECT {', '.join(columns)} FROM n{index})" if columns else from_lists(index, types)


def array_of(values: Sequence[Value]) -> Array | None:
    """A column as an array whose type DuckDB need not guess; None where there is none, or a value is missing."""
    kinds = set(map(type, values))
    if kinds == {str}:
        return np.array(values, dtype=np.object_)
    if kinds == {bool}:
        return np.array(values, dtype=np.bool_)
    if kinds == {int}:
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:
            return None
    if kinds == {float}:
        array = np.array(values, dtype=np.float64)
        return array if np.isfinite(array).all() else None  # DuckDB takes one that is not a number for NULL
    return None
