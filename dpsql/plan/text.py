"""Scalars as short text for EXPLAIN and tests, with the analyst's names, never values of data."""

from __future__ import annotations

from typing import assert_never

from dpsql.plan.scalars import (
    Aggregated,
    Array,
    Call,
    Case,
    Const,
    Correlated,
    InStage,
    IntervalEnd,
    Op,
    Ref,
    Scalar,
    StageValue,
    Subquery,
    Subscript,
    Windowed,
)

_INFIX = frozenset(
    {Op.AND, Op.OR, Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE, Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.MOD, Op.CONCAT}
    | {Op.LIKE, Op.ILIKE, Op.DISTINCT_FROM}
)


def scalar_text(node: Scalar) -> str:
    match node:
        case Ref(field=field):
            return field.name
        case Const(value=value):
            return "NULL" if value is None else repr(value) if isinstance(value, str) else str(value)
        case Case(branches=branches, default=default):
            parts = " ".join(f"WHEN {scalar_text(when)} THEN {scalar_text(then)}" for when, then in branches)
            return f"CASE {parts} ELSE {scalar_text(default)} END"
        case Array(items=items):
            return f"array[{', '.join(map(scalar_text, items))}]"
        case Subscript(array=array, index=index):
            return f"{scalar_text(array)}[{index}]"
        case StageValue(stage=stage):
            return f"(stage {stage + 1})"
        case InStage(arg=arg, stage=stage):
            return f"{scalar_text(arg)} IN (stage {stage + 1})"
        case Subquery() | Correlated():
            return "(subquery)"
        case Aggregated(function=function, args=args):
            return f"{function.value}({', '.join(map(scalar_text, args)) or '*'})"
        case IntervalEnd(arg=arg):
            return f"{node.name}({scalar_text(arg)})"
        case Windowed(function=function, args=args):
            return f"{function}({', '.join(map(scalar_text, args))}) OVER (…)"
        case Call(op=op, args=args, type=type_, option=option):
            texts = [scalar_text(arg) for arg in args]
            if op in _INFIX:
                return f"({texts[0]} {op.value} {texts[1]})"
            if op in (Op.IS_NULL, Op.IS_TRUE, Op.IS_FALSE):
                return f"({texts[0]} {op.value})"
            if op is Op.CAST:
                return f"{texts[0]}::{type_.kind.value}"
            if op is Op.IN:
                shown = texts[1:4] + (["…"] if len(texts) > 4 else [])
                return f"{texts[0]} IN ({', '.join(shown)})"
            return f"{op.value}({', '.join([*([option] if option else []), *texts])})"
        case _:
            assert_never(node)
