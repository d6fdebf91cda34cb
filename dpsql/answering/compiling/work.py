"""The compilation itself: from a text to a release. Pure, so that it can run in another process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dpsql.effort import Effort, OutOfSteps, limited
from dpsql.errors import NotSupported, TooComplex
from dpsql.lowering.dialect import Dialect
from dpsql.policy.model import Catalog
from dpsql.privacy.accounting import Accountant
from dpsql.release import Release, Source, compile_release
from dpsql.sql.parse import parse
from dpsql.sql.resolve import resolve

Choice = tuple[tuple[int, int], ...]  # the chosen clips and centres, by the bound search that chose each


@dataclass(frozen=True, slots=True)
class Ground:
    """What all queries of a dataset are compiled against."""

    catalog: Catalog
    accountant: Accountant
    dialect: Dialect


@dataclass(frozen=True, slots=True)
class Compiled:
    release: Release
    reads_clock: bool
    reads_zone: bool
    steps: int


def compile_source(
    ground: Ground, source: Source, chosen: Choice, most: int, is_stopped: Callable[[], bool] = lambda: False
) -> Compiled:
    """The release of a text, in at most `most` steps; raises OutOfSteps, or Stopped."""
    clock = replace(source.clock, reads=0, zone_reads=0)
    effort = Effort(most, is_stopped)
    try:
        with limited(effort):
            plan = resolve(parse(source.sql, ground.catalog.limits), ground.catalog, source.parameters, clock)
            release = compile_release(
                plan, ground.catalog, ground.accountant, source.settings, ground.dialect, source.clips
            )
            if chosen and release.settle is not None:
                release = release.settle(dict(chosen))
    except RecursionError:
        raise NotSupported("the query is nested too deeply", hint="Split it into smaller queries.") from None
    return Compiled(replace(release, settle=None, unsettled=None), clock.reads > 0, clock.zone_reads > 0, effort.steps)


def too_many_steps(most: int) -> TooComplex:
    return TooComplex(
        f"the query takes more than {most:,} steps to compile",
        hint="Split it into smaller queries; the limit is max_compile_steps in [limits] of the policy.",
    )


__all__ = ["Choice", "Compiled", "Ground", "OutOfSteps", "compile_source", "too_many_steps"]
