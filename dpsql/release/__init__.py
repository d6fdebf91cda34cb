"""A query becomes a Release without touching data."""

from dpsql.release.compiler import compile_release
from dpsql.release.model import Clips, Measurement, Output, Release, Settings, Source, Stage, as_told
from dpsql.release.pricing import least

__all__ = [
    "Clips",
    "Measurement",
    "Output",
    "Release",
    "Settings",
    "Source",
    "Stage",
    "as_told",
    "compile_release",
    "least",
]
