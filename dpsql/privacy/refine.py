"""Refines facts about columns by a condition: rows that pass WHERE have fewer keys and tighter bounds.

Claim: the facts that come out hold for every row that passes the condition.
Because: each conjunct is true of such a row. One that reads a single column is evaluated over the column's declared
keys, or compares it with a constant.
Needs: nothing of the data; only the query and the policy are read. The clamp enforces the bounds whatever the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from dpsql.plan.constants import NotConstant, evaluate
from dpsql.plan.scalars import Call, Const, Op, Ref, Scalar, as_moment, refs
from dpsql.privacy.bounds import NOTHING, Fact, Facts, Interval, as_number
from dpsql.types import Kind

_MIRRORED = {Op.LT: Op.GT, Op.LE: Op.GE, Op.GT: Op.LT, Op.GE: Op.LE, Op.EQ: Op.EQ}


def refine(facts: Facts, condition: Scalar) -> Facts:
    """The facts of the rows for which `condition` is true."""
    result = dict(facts)
    for conjunct in conjuncts(condition):
        fields = {ref.field.id: ref for ref in refs(conjunct)}
        if len(fields) == 1:
            ((field, ref),) = fields.items()
            result[field] = _refined(result.get(field, NOTHING), ref, conjunct)
            result |= _restricted(conjunct)
        elif isinstance(conjunct, Call) and conjunct.op is Op.OR:
            result |= _either(result, conjunct)
    return result


def _either(facts: Facts, condition: Call) -> dict[object, Fact]:
    """What holds in either alternative: the hull of the bounds, the union of the keys."""
    parts = [refine(facts, part) for part in condition.args]
    found: dict[object, Fact] = {}
    for key in {ref.field.id for ref in refs(condition)}:
        known = [part.get(key, NOTHING) for part in parts]
        hull = known[0].interval
        for other in known[1:]:
            hull = hull.union(other.interval)
        lists = [fact.domain for fact in known if fact.domain is not None]
        keys = tuple(dict.fromkeys(key for listed in lists for key in listed)) if len(lists) == len(known) else None
        found[key] = replace(facts.get(key, NOTHING), interval=hull, domain=keys)
    return found


def _restricted(conjunct: Scalar) -> dict[object, Fact]:
    """SUBSTRING(x FROM 1 FOR 2) IN ('13', '31'): an expression with few values, wherever it occurs again."""
    if not isinstance(conjunct, Call) or conjunct.op not in (Op.IN, Op.EQ) or not isinstance(conjunct.args[0], Call):
        return {}
    values = [arg.value for arg in conjunct.args[1:] if isinstance(arg, Const) and arg.value is not None]
    if len(values) < len(conjunct.args) - 1 or conjunct.args[0].type.kind in (Kind.DOUBLE, Kind.INTERVAL):
        return {}
    return {conjunct.args[0]: Fact(domain=tuple(dict.fromkeys(values)))}


def conjuncts(condition: Scalar) -> Iterator[Scalar]:
    if isinstance(condition, Call) and condition.op is Op.AND:
        for part in condition.args:
            yield from conjuncts(part)
    else:
        yield condition


def _refined(fact: Fact, ref: Ref, conjunct: Scalar) -> Fact:
    interval = _compared(fact.interval, ref, conjunct)
    keys = fact.domain
    if keys is None and ref.type.kind is Kind.BOOLEAN:
        keys = (False, True)
    if keys is not None:
        try:
            keys = tuple(key for key in keys if evaluate(conjunct, {ref.field.id: key}) is True)
        except NotConstant:
            keys = fact.domain
    return replace(fact, interval=interval, domain=keys)


def _compared(interval: Interval, ref: Ref, conjunct: Scalar) -> Interval:
    """Bounds that a comparison of the column with a constant sets."""
    if not isinstance(conjunct, Call) or conjunct.op not in _MIRRORED or len(conjunct.args) != 2:
        return interval
    left, right = map(as_moment, conjunct.args)
    op = conjunct.op
    if isinstance(left, Const):
        left, right, op = right, left, _MIRRORED[op]
    bound = as_number(right.value) if isinstance(right, Const) else None
    if left != ref or bound is None:
        return interval
    grain = Fraction(1, 10**ref.type.scale) if ref.type.kind is Kind.DECIMAL else None
    if ref.type.is_moment and op in (Op.LT, Op.GT):
        bound += Fraction(1 if op is Op.GT else -1, 10**6)  # the next microsecond
    whole = ref.type.kind in (Kind.INTEGER, Kind.DATE)
    low, high = interval.low, interval.high
    if op in (Op.GT, Op.GE, Op.EQ):
        least = _next_whole(bound, strict=op is Op.GT) if whole else bound
        least = least if grain is None else math.floor(least / grain) * grain
        low = least if low is None else max(low, least)
    if op in (Op.LT, Op.LE, Op.EQ):
        most = -_next_whole(-bound, strict=op is Op.LT) if whole else bound
        most = most if grain is None else math.ceil(most / grain) * grain
        high = most if high is None else min(high, most)
    # No row passes an empty interval; the wider one is also valid, and easier to work with.
    return interval if low is not None and high is not None and low > high else Interval(low, high)


def _next_whole(bound: Fraction, *, strict: bool) -> Fraction:
    return Fraction(math.floor(bound) + 1 if strict else math.ceil(bound))
