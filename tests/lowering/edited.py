"""Steps of a query that are changed, to see that checks notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dpsql.lowering.select import Pipeline, Select, UnionAll


def reworded(pipeline: Pipeline, change: Callable[[str], str], name: str = "") -> Pipeline:
    """With each text of one step changed: of the one of this name, or of the last."""
    return with_step(pipeline, lambda select: _reworded(select, change), name)


def with_step(pipeline: Pipeline, change: Callable[[Select], Select], name: str = "") -> Pipeline:
    name = name or pipeline.last
    assert any(step.name == name for step in pipeline.steps), f"there is no step {name}"
    changed = [
        replace(step, query=_changed(step.query, change)) if step.name == name else step for step in pipeline.steps
    ]
    return Pipeline(tuple(changed))


def _changed(query: Select | UnionAll, change: Callable[[Select], Select]) -> Select | UnionAll:
    return change(query) if isinstance(query, Select) else UnionAll(tuple(map(change, query.parts)))


def _reworded(select: Select, change: Callable[[str], str]) -> Select:
    columns, where, group_by, having = (
        tuple(map(change, texts)) for texts in (select.columns, select.where, select.group_by, select.having)
    )
    source = change(select.source)
    return replace(select, columns=columns, source=source, where=where, group_by=group_by, having=having)
