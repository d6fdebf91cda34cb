"""Cells of a noisy table added up by some of its keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dpsql.plan.nodes import Aggregate, Plan, Project
from dpsql.plan.scalars import Agg, Aggregated, Call, Field, Op, Ref, Scalar, rebuild
from dpsql.types import Type, decimal


def added_up(
    part: Plan,
    chosen: tuple[int, ...],
    keys: dict[int, Field],
    sums: dict[int, Field],
    new_field: Callable[[str, Type], Field],
) -> tuple[Plan, dict[int, Field], dict[int, Field]]:
    """The cells of a set with some of the keys, by these keys and sums."""
    kept = {i: new_field(keys[i].name, keys[i].type) for i in chosen}
    wide = {old: new_field(field.name, decimal(28, 0)) for old, field in sums.items()}
    whole = {old: new_field(field.name, field.type) for old, field in sums.items()}
    added = Aggregate(
        part,
        tuple((kept[i], Ref(keys[i])) for i in chosen),
        tuple((wide[old], Aggregated(Agg.SUM, (Ref(field),), wide[old].type)) for old, field in sums.items()),
        (tuple(range(len(chosen))),),
    )
    casts: list[tuple[Field, Scalar]] = [
        (field, Call(Op.CAST, (Ref(wide[old]),), field.type)) for old, field in whole.items()
    ]
    return Project(added, (*((field, Ref(field)) for field in kept.values()), *casts)), kept, whole


def over(value: Scalar, sums: Mapping[int, Field]) -> Scalar:
    """An expression over the sums of one set."""
    if isinstance(value, Ref) and value.field.id in sums:
        return Ref(sums[value.field.id])
    return rebuild(value, lambda part: over(part, sums))
