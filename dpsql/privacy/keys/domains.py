"""Declared keys: every value that a GROUP BY expression can have, from the policy and the query alone.

Claim: the list depends on query text and policy only, so returning every key of it, zeros included, tells nothing.
Because: it is computed by evaluating the expression over declared values and bounds; rows whose key is not
in it are dropped before they are counted.
Needs: at most `limit` keys; otherwise the keys are unknown, and partition selection must choose them.
NULL is a key only where the policy (`nullable_key`) or the query itself (a CASE without ELSE) says so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

from dpsql.effort import spend
from dpsql.plan.constants import (
    FINE_UNITS,
    NotConstant,
    apply,
    bin_start,
    cast,
    evaluate,
    truncate,
    truncate_in_zone,
)
from dpsql.plan.scalars import Call, Case, Const, Correlated, InStage, Op, Ref, Scalar, StageValue, refs
from dpsql.plan.zones import EPOCH, known_zone
from dpsql.privacy.bounds import NOTHING, Facts, as_datetime, interval, never_null
from dpsql.types import Kind, Value

Domain = tuple[Value, ...]
_VALUES_PER_STEP = 8  # a value is less work than a part of a query


def domain(node: Scalar, facts: Facts, limit: int) -> Domain | None:
    """The possible keys in order, or None if there is no such list of at most `limit`."""
    spend()
    found = _domain(node, facts, limit)
    if found is None:
        return None
    spend(len(found) // _VALUES_PER_STEP)
    distinct = in_order(found)
    return distinct if len(distinct) <= limit else None


def in_order(keys: Iterable[Value]) -> Domain:
    """Distinct keys in the order in which they are returned, NULL last."""
    return tuple(sorted(set(keys), key=_order))


def _order(value: Value) -> tuple[bool, object]:
    return (value is None, 0 if value is None else value)


def _domain(node: Scalar, facts: Facts, limit: int) -> Domain | None:
    restricted = facts.get(node)
    if restricted is not None and restricted.domain is not None:
        return restricted.domain
    match node:
        case Const(value=value):
            return (value,)
        case Ref(field=field):
            known = facts.get(field.id, NOTHING).domain
            if known is not None:
                return known
            if node.type.kind is Kind.BOOLEAN:
                return (False, True)
        case Case(branches=branches, default=default):
            return _union([then for _, then in branches] + [default], facts, limit)
        case Call(op=Op.COALESCE, args=args):
            return _coalesced(args, facts, limit)
        case Call(op=op) if op is not Op.CAST:
            mapped = _mapped(node, facts, limit)
            if mapped is not None:
                return mapped
            if node.type.kind is Kind.BOOLEAN:
                return (False, True)
        case Call(op=Op.CAST, args=(inner,)):
            source = domain(inner, facts, limit)
            if source is not None:
                try:
                    return tuple(cast(value, inner.type, node.type) for value in source)
                except NotConstant:
                    return None
        case StageValue(type=type_) | InStage(type=type_) | Correlated(type=type_) if type_.kind is Kind.BOOLEAN:
            return (False, True)
        case _:
            return None
    return _enumerated(node, facts, limit)


def _union(parts: list[Scalar], facts: Facts, limit: int) -> Domain | None:
    values: list[Value] = []
    for part in parts:
        found = domain(part, facts, limit)
        if found is None:
            return None
        values += found
    return tuple(values)


def _coalesced(args: tuple[Scalar, ...], facts: Facts, limit: int) -> Domain | None:
    found = _union(list(args), facts, limit)
    if found is None:
        return None
    last = domain(args[-1], facts, limit)
    without_null = last is not None and None not in last
    return tuple(value for value in found if value is not None) if without_null else found


def _mapped(node: Call, facts: Facts, limit: int) -> Domain | None:
    """A function of columns with few values: its value on each combination of them.

    A column that may be NULL is evaluated at NULL, too: `x IS NULL` has two keys. A NULL result that only an undeclared
    NULL leads to is not a key.
    """
    fields = {ref.field.id: ref for ref in refs(node)}
    domains = [domain(ref, facts, limit) for ref in fields.values()]
    known = [found for found in domains if found is not None]
    if len(known) < len(domains):
        return _image(node, facts, limit)
    values = [
        (*found, None) if facts.get(field, NOTHING).nullable and None not in found else found
        for field, found in zip(fields, known, strict=True)
    ]
    if math.prod(map(len, values)) > 2 * limit:
        return None
    keys = []
    declared_values = [set(found) for found in known]
    try:
        for combination in itertools.product(*values):
            key = evaluate(node, dict(zip(fields, combination, strict=True)))
            declared = all(value in found for value, found in zip(combination, declared_values, strict=True))
            if declared or key is not None:
                keys.append(key)
    except NotConstant:
        return None
    return tuple(keys)


def _image(node: Call, facts: Facts, limit: int) -> Domain | None:
    """A function of one sub-expression that has keys, and of constants: the image of these keys."""
    varying = [i for i, arg in enumerate(node.args) if any(True for _ in refs(arg))]
    if len(varying) != 1 or not all(isinstance(arg, Const) for i, arg in enumerate(node.args) if i != varying[0]):
        return None
    keys = domain(node.args[varying[0]], facts, limit)
    if keys is None:
        return None
    undeclared = None not in keys and not never_null(node.args[varying[0]], facts)
    constants: list[Value] = [arg.value if isinstance(arg, Const) else None for arg in node.args]
    try:
        image = [apply(node, [*constants[: varying[0]], key, *constants[varying[0] + 1 :]]) for key in keys]
        if undeclared:
            of_null = apply(node, [*constants[: varying[0]], None, *constants[varying[0] + 1 :]])
            image += [] if of_null is None else [of_null]
    except NotConstant:
        return None
    return tuple(image)


_WHOLE = frozenset({Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC, Op.SIGN})
_FRACTIONAL_PARTS = frozenset({"second", "epoch"})


def _enumerated(node: Scalar, facts: Facts, limit: int) -> Domain | None:
    """Whole numbers, days, months … between bounds."""
    bounds = interval(node, facts)
    if not bounds.bounded:
        return None
    assert bounds.low is not None and bounds.high is not None
    if node.type.kind is Kind.DATE:
        return _days(bounds.low, bounds.high, limit)
    if isinstance(node, Call) and node.op is Op.DATE_TRUNC:
        return periods(node.option, bounds.low, bounds.high, limit)
    if isinstance(node, Call) and node.op is Op.ZONED_TRUNC:
        moments = interval(node.args[0], facts)
        assert moments.low is not None and moments.high is not None
        return _zoned_units(node.option, as_datetime(moments.low), as_datetime(moments.high), limit)
    if isinstance(node, Call) and node.op is Op.DATE_BIN:
        return _bins(node, bounds.low, bounds.high, limit)
    if not _is_whole(node):
        return None
    stride = _stride(node)
    low, high = math.ceil(bounds.low / stride) * stride, math.floor(bounds.high / stride) * stride
    if (high - low) // stride + 1 > limit:
        return None
    whole = range(low, high + 1, stride)
    match node.type.kind:
        case Kind.INTEGER:
            return tuple(whole)
        case Kind.DECIMAL:
            return tuple(Decimal(value) for value in whole)
        case _:
            return tuple(float(value) for value in whole)


def _stride(node: Scalar) -> int:
    """ROUND(x, -2) gives hundreds."""
    if isinstance(node, Call) and node.op in (Op.ROUND, Op.TRUNC) and len(node.args) > 1:
        digits = node.args[1].value if isinstance(node.args[1], Const) else 0
        if isinstance(digits, int) and digits < 0:
            return int(10**-digits)
    return 1


def _is_whole(node: Scalar) -> bool:
    if node.type.kind is Kind.INTEGER:
        return True
    if not isinstance(node, Call):
        return False
    if node.op is Op.EXTRACT:
        return node.option not in _FRACTIONAL_PARTS
    if node.op in (Op.ROUND, Op.TRUNC) and len(node.args) > 1:
        digits = node.args[1].value if isinstance(node.args[1], Const) else None
        return isinstance(digits, int) and digits <= 0
    return node.op in _WHOLE


def _days(low: Fraction, high: Fraction, limit: int) -> Domain | None:
    first, last = math.floor(low), math.floor(high)
    if last - first + 1 > limit:
        return None
    return tuple(date.fromordinal(day) for day in range(first, last + 1))


def periods(unit: str, low: Fraction, high: Fraction, limit: int) -> Domain | None:
    start, end = as_datetime(low), as_datetime(high)
    if (end - start) / _STRIDE[unit] > limit:
        return None  # none is longer than this
    at = truncate(unit, start)
    found: list[Value] = []
    while at <= end:
        found.append(at)
        if len(found) > limit:
            return None
        try:
            at = truncate(unit, at + _STRIDE[unit])
        except OverflowError:
            break
    return tuple(found)


def _zoned_units(option: str, low: datetime, high: datetime, limit: int) -> Domain | None:
    """Hours, minutes or seconds of a zone between two moments; each change of its offset starts a new sequence."""
    unit, name = option.split(" ")
    step = timedelta(seconds=FINE_UNITS[unit])
    if (high - low) / step > limit:
        return None
    changes = [EPOCH + timedelta(seconds=at) for at, _ in known_zone(name).leaving.between(low, high).changes]
    starts = [low, *changes]
    found: set[Value] = set()
    for start, end in zip(starts, [*changes, high], strict=True):
        at = truncate_in_zone(option, start)
        while at is not None and at <= end:
            found.add(at)
            at = None if datetime.max - at < step else at + step
    return tuple(found)


def _bins(node: Call, low: Fraction, high: Fraction, limit: int) -> Domain | None:
    _, stride, origin = (arg.value if isinstance(arg, Const) else None for arg in node.args)
    assert isinstance(stride, int | Decimal) and isinstance(origin, datetime)
    if (high - low) / Fraction(stride) + 1 > limit:
        return None
    start, end = as_datetime(low), as_datetime(high)
    found: list[Value] = []
    at = bin_start(start, stride, origin)
    while at is None or at <= end:
        if at is not None:
            found.append(at)
        try:
            start += timedelta(seconds=float(stride))
        except OverflowError:
            break
        at = bin_start(start, stride, origin)
    return tuple(found)


# Long enough to reach the next period from the start of any, short enough not to skip one.
_STRIDE = {
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(days=7),
    "month": timedelta(days=31),
    "quarter": timedelta(days=93),
    "year": timedelta(days=366),
    "decade": timedelta(days=3653),
}
