"""Numbers for Prometheus. What has happened is counted from the events of the log, so that the two always agree."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dpsql.wire.logs import event_of

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Counted:
    """Events that one counter counts, and the facts by which it tells them apart. Names of users are none of them."""

    metric: str
    help: str
    facts: tuple[str, ...] = ()


_COUNTED = {
    "login": _Counted("dpsql_logins_total", "Clients who have proven who they are."),
    "login_refused": _Counted("dpsql_logins_refused_total", "Clients who were turned away.", ("sqlstate",)),
    "statement": _Counted("dpsql_statements_total", "Statements that name a declared table.", ("outcome",)),
    "reload": _Counted("dpsql_reloads_total", "Times the policy file was read again.", ("outcome",)),
    "twin_lost": _Counted("dpsql_twin_lost_total", "Sessions that ended because the twin had gone."),
    "worker_lost": _Counted("dpsql_workers_lost_total", "Processes that ended by themselves and were started again."),
    "engine_failed": _Counted("dpsql_engine_failures_total", "Failures of the engine."),
    "circuit_opened": _Counted("dpsql_circuits_opened_total", "Times that queries were refused after failures."),
    "message": _Counted("dpsql_log_messages_total", "Lines of the log that are no event of their own.", ("logger",)),
}
# Shown from the beginning, so that the first refusal is an increase from zero.
_OUTCOMES = ("answered", "replayed", "explained", "refused", "cancelled", "failed")


@dataclass(frozen=True, slots=True)
class Gauge:
    """What is the case now."""

    metric: str
    help: str
    value: float


@dataclass(slots=True)
class Counts:
    """What has happened, in one process or in several."""

    events: Counter[tuple[str, Labels]] = field(default_factory=Counter)
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    seconds: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        events = Counter(self.events)
        events.update(other.events)  # the operator + would drop what is zero
        buckets = [a + b for a, b in zip(self.buckets, other.buckets, strict=True)]
        return Counts(events, buckets, self.seconds + other.seconds)


class Metrics(logging.Handler):
    """A handler of the log that counts."""

    def __init__(self) -> None:
        super().__init__()
        self._counts = Counts()
        for event, counted in _COUNTED.items():
            if not counted.facts:
                self._counts.events[event, ()] = 0
        for outcome in _OUTCOMES:
            self._counts.events["statement", (("outcome", outcome),)] = 0

    def emit(self, record: logging.LogRecord) -> None:
        event, facts = event_of(record)
        counted = _COUNTED.get(event)
        if counted is None:
            return
        self._counts.events[event, tuple((name, str(facts.get(name, ""))) for name in counted.facts)] += 1
        if event == "statement" and facts.get("outcome") in ("answered", "replayed"):
            seconds = float(facts["seconds"] or 0)
            self._counts.buckets[bisect_left(BUCKETS, seconds)] += 1
            self._counts.seconds += seconds

    def counts(self) -> Counts:
        """A copy of what was counted so far."""
        self.acquire()
        try:
            return self._counts + Counts()
        finally:
            self.release()


def page(counts: Counts, gauges: Iterable[Gauge]) -> str:
    """All numbers in Prometheus' text format."""
    lines = [*_counters(counts), *_histogram(counts)]
    for gauge in gauges:
        lines += _head(gauge.metric, "gauge", gauge.help)
        lines.append(f"{gauge.metric} {gauge.value:.17g}")
    return "\n".join(lines) + "\n"


def _counters(counts: Counts) -> Iterator[str]:
    for event, counted in _COUNTED.items():
        yield from _head(counted.metric, "counter", counted.help)
        for (name, labels), count in sorted(counts.events.items()):
            if name == event:
                yield f"{counted.metric}{_labelled(dict(labels))} {count}"


def _histogram(counts: Counts) -> Iterator[str]:
    metric, total = "dpsql_answer_seconds", 0
    yield from _head(metric, "histogram", "Time until an answer is ready to be sent.")
    for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts.buckets, strict=True):
        total += count
        yield f"{metric}_bucket{_labelled({'le': bound})} {total}"
    yield f"{metric}_sum {counts.seconds:.17g}"
    yield f"{metric}_count {total}"


def _head(metric: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {metric} {text}", f"# TYPE {metric} {kind}"]


def _labelled(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    escaped = (
        (name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for name, value in labels.items()
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"
