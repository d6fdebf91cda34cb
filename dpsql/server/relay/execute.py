"""Executes one statement in a worker thread: the dataset answers it, and the rows become SQL for the twin."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from dpsql.answering.answer import Answer
from dpsql.answering.dataset import Dataset
from dpsql.answering.session import Session, SessionSettings
from dpsql.effort import Cancellation
from dpsql.engines.runtime import log_engine_error
from dpsql.errors import BadSetting, Cancelled, Error, InternalError, NotSupported, TooManyFiles, is_for_files
from dpsql.plan.zones import Zone, zone_of_setting
from dpsql.privacy.accounting import Price
from dpsql.release import Output
from dpsql.release.explain import number_text, price_text
from dpsql.server.protocol.messages import Column
from dpsql.server.relay import render
from dpsql.sql.arrays import array_text
from dpsql.types import Cell, Value


@dataclass(frozen=True, slots=True)
class Question:
    """A query as the client sent it, with the session's settings and the columns that PostgreSQL would return."""

    text: str
    parameters: tuple[Value, ...]
    settings: Mapping[str, str]  # those of `dpsql.settings` that are set
    columns: tuple[Column, ...]
    types: tuple[str, ...]  # the names of the columns' types
    zone: str  # the session's TimeZone


@dataclass(frozen=True, slots=True)
class Reply:
    sql: bytes  # a query that returns the rows
    notice: str | None = None
    cautions: tuple[str, ...] = ()  # shown with the notice
    outcome: Literal["answered", "replayed", "explained"] = "answered"
    price: Price = field(default_factory=Price)  # what was paid for it just now


def answer(dataset: Dataset, user: str, question: Question, cancellation: Cancellation) -> Reply:
    """The answer to a query, paid for. Whether the twin can return its types is checked first."""
    session = _session(dataset, user, question)
    outputs = None
    with suppress(Error):  # raised again below, where it is logged
        outputs = session.describe(question.text, question.parameters, cancellation)
    if outputs is not None:
        _check_shape(outputs, question.columns)
    if cancellation.cancelled:
        raise Cancelled("canceling statement due to user request")
    result = session.execute(question.text, question.parameters, cancellation)
    assert isinstance(result, Answer)
    sql = render.rendering(question.columns, question.types, result.table.rows)
    is_replay = bool(result.release.measurements) and result.charged == Price()
    outcome: Literal["answered", "replayed"] = "replayed" if is_replay else "answered"
    return Reply(sql, _notice(session, result), result.release.cautions, outcome, result.charged)


def explain(dataset: Dataset, user: str, question: Question, cancellation: Cancellation, *, as_json: bool) -> Reply:
    """EXPLAIN: free."""
    lines = _session(dataset, user, question).explain(question.text, question.parameters, cancellation)
    rows: list[tuple[Cell, ...]] = [(line,) for line in lines]
    if as_json:
        rows = [(json.dumps([{"Plan": {"Node Type": "Private answer", "Output": lines}}], ensure_ascii=False),)]
    return Reply(render.rendering(question.columns, question.types, rows), outcome="explained")


def refuse(dataset: Dataset, user: str, text: str, refusal: Error) -> Reply:
    """Refuse a statement for its form alone; it is logged like any other."""
    with suppress(Exception):
        dataset.ledger.refuse(user, text, refusal.sqlstate, refusal.message)
    raise refusal.with_traceback(None)  # the error is kept with the statement, and would collect tracebacks


def _check_shape(outputs: Sequence[Output], columns: Sequence[Column]) -> None:
    if len(outputs) != len(columns):
        raise NotSupported("the answer does not have the columns that PostgreSQL would return")
    for output, column in zip(outputs, columns, strict=True):
        if not render.is_rendered(output.type, column.type):
            message = f'the type of column "{output.name}" differs from PostgreSQL\'s'
            raise NotSupported(message, hint="Add a cast to the column.")


def _session(dataset: Dataset, user: str, question: Question) -> Session:
    settings = SessionSettings(zone=_zone(question.zone))
    for name, text in question.settings.items():
        if text.lower() not in ("", "default"):
            settings.set(name, text)
    return Session(dataset, user, settings)


def _zone(name: str) -> Zone:
    """The session's time zone, as the twin shows it."""
    found = zone_of_setting(name)
    if found is None:
        raise NotSupported(
            f'time zone "{name}" is not supported', hint="SET TimeZone to a name of the IANA database, as in 'UTC'."
        )
    return found


def _notice(session: Session, result: Answer) -> str | None:
    if not result.release.measurements:
        return None
    accountant = session.dataset.accountant
    paid = price_text(result.charged, accountant)
    margins = [
        f'"{output.name}" {text}'
        for number, output in enumerate(result.release.outputs)
        if (text := _margin(result.column_margins(number), output.mark_of_margin))
    ]
    if any(measurement.derived for measurement in result.release.measurements):
        paid += ", made of earlier answers"
    return f"paid {paid}, left {session.left()}" + (
        f"; margins ({result.release.confidence}): {', '.join(margins)}" if margins else ""
    )


def _margin(margins: Sequence[float | None], mark: str) -> str | None:
    """The margins of a column, from smallest to largest, each with the mark."""
    noisy = [margin for margin in margins if margin is not None]
    known = [margin for margin in noisy if math.isfinite(margin)]
    if not known:
        return "unknown (noise)" if noisy else None
    least, most = (number_text(Fraction(margin)) for margin in (min(known), max(known)))
    text = f"±{least}{mark}" if least == most else f"±{least}{mark} to ±{most}{mark}"
    unknown = len(noisy) - len(known)
    return f"{text}, unknown (noise) in {unknown:,} of {len(noisy):,} rows" if unknown else text


def decoded(values: Sequence[bytes | None], types: Sequence[int]) -> tuple[Value, ...]:
    """Parameters that the twin has read and written as JSON."""
    found: list[Value] = []
    for number, (value, oid) in enumerate(zip(values, types, strict=True), 1):
        try:
            found.append(None if value is None else _decoded(json.loads(value, parse_float=Decimal), oid))
        except (ValueError, ArithmeticError):
            raise BadSetting(f"the value of parameter ${number} is out of range") from None
    return tuple(found)


def _decoded(value: object, oid: int) -> Value:
    match oid:
        case render.FLOAT4 | render.FLOAT8:
            return float(str(value))
        case render.NUMERIC:
            return Decimal(str(value))
        case render.DATE:
            return date.fromisoformat(str(value))
        case render.TIMESTAMP | render.TIMESTAMPTZ:
            moment = datetime.fromisoformat(str(value))
            return moment if moment.tzinfo is None else moment.astimezone(UTC)
        case _ if isinstance(value, list):
            return array_text(value)
        case _:
            return value if isinstance(value, bool | int | str) else str(value)


def defect(error: Exception) -> Error:
    """An internal error as the client sees it: a log id without details, unless the owner must act on it."""
    if is_for_files(error):
        return TooManyFiles()
    return InternalError(
        f"the query could not be answered (log id {log_engine_error(error)})",
        hint="The owner finds the cause in the log under this id.",
    )
