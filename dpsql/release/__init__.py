"""A query becomes a Release without touching data."""

from dpsql.release.compiler import compile_release
from dpsql.release.model import (
    BoundMode,
    Measurement,
    Output,
    QuerySettings,
    Release,
    Rest,
    Source,
    Stage,
    as_told,
    with_confidence,
)
from dpsql.release.pricing import least

__all__ = [
    "BoundMode",
    "Measurement",
    "Output",
    "QuerySettings",
    "Release",
    "Rest",
    "Source",
    "Stage",
    "as_told",
    "compile_release",
    "least",
    "with_confidence",
]
