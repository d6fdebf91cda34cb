"""Window frames, written anew from a closed grammar."""

from __future__ import annotations

from sqlglot import exp

from dpsql.errors import NotSupported, WindowingError
from dpsql.sql.allowed import check_arguments


def frame(spec: exp.Expression | None) -> str:
    if spec is None:
        return ""
    check_arguments(spec, {"kind", "start", "start_side", "end", "end_side"})
    kind = str(spec.args.get("kind") or "ROWS").upper()
    if kind not in ("ROWS", "RANGE", "GROUPS"):
        raise NotSupported("this window frame is not supported")
    start = _frame_end(spec.args.get("start"), spec.args.get("start_side"), kind)
    end = _frame_end(spec.args.get("end") or "CURRENT ROW", spec.args.get("end_side"), kind)
    if _FRAME_ORDER.index(_frame_kind(start)) > _FRAME_ORDER.index(_frame_kind(end)) or (
        start == "UNBOUNDED FOLLOWING" or end == "UNBOUNDED PRECEDING"
    ):
        raise WindowingError("a window frame must not end before it starts")
    return f"{kind} BETWEEN {start} AND {end}"


_FRAME_ORDER = ("UNBOUNDED PRECEDING", "PRECEDING", "CURRENT ROW", "FOLLOWING", "UNBOUNDED FOLLOWING")


def _frame_kind(bound: str) -> str:
    return bound if bound in _FRAME_ORDER else bound.split()[-1]


def _frame_end(bound: object, side: object, kind: str) -> str:
    if isinstance(bound, exp.Literal) and not bound.is_string and str(bound.this).isdigit() and kind != "RANGE":
        if len(str(bound.this)) > 9:
            raise NotSupported("a window frame of a billion rows is not supported")
        text = str(int(str(bound.this)))
    elif str(bound).upper() in ("UNBOUNDED", "CURRENT ROW"):
        text = str(bound).upper()
    else:
        raise NotSupported("this window frame is not supported")
    direction = str(side or "").upper()
    if direction not in ("", "PRECEDING", "FOLLOWING") or (text == "CURRENT ROW") != (direction == ""):
        raise NotSupported("this window frame is not supported")
    return f"{text} {direction}".strip()
