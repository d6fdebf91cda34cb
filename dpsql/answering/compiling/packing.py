"""Pickling of releases, queries and errors between our own processes, which hold the same catalog."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from dpsql.answering.compiling.work import Ground
from dpsql.engines.registry import dialect_named
from dpsql.errors import Error
from dpsql.lowering.dialect import Dialect
from dpsql.policy.model import Table


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, tables: dict[int, str]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._tables = tables

    def persistent_id(self, value: object) -> object:
        """Tables are compared by identity, and dialects hold functions, so both are sent by name."""
        if isinstance(value, Table) and id(value) in self._tables:
            return "table", self._tables[id(value)]
        if isinstance(value, Dialect):
            return "dialect", value.name
        return None

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, MappingProxyType):
            return _read_only, (dict(value),)
        if isinstance(value, Error):
            return _error, (type(value), value.args, value.__dict__)
        return NotImplemented


class Packing:
    """Each end has one, for the same catalog."""

    def __init__(self, ground: Ground | None = None) -> None:
        self._tables = {} if ground is None else dict(ground.catalog.tables)
        self._names = {id(table): name for name, table in self._tables.items()}

    def pack(self, value: object) -> bytes:
        file = io.BytesIO()
        _Pickler(file, self._names).dump(value)
        return file.getvalue()

    def unpack(self, data: bytes) -> Any:
        return _Unpickler(io.BytesIO(data), self._tables).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tables: dict[str, Table]) -> None:
        super().__init__(file)
        self._tables = tables

    def persistent_load(self, name: Any) -> object:
        kind, key = name
        return self._tables[key] if kind == "table" else dialect_named(key)


def _read_only(content: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(content)


def _error(kind: type[Error], arguments: tuple[object, ...], facts: dict[str, object]) -> Error:
    """Restore an error; the constructors of many take something other than the message."""
    make: Callable[..., Error] = kind.__new__
    error = make(kind, *arguments)
    error.args = arguments
    error.__dict__.update(facts)
    return error
