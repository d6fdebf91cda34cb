"""Whether dpsql reads a text as PostgreSQL does: python -m grammar_tests.readings [--seconds N] [--seed N].

What PostgreSQL refuses, dpsql must refuse; what dpsql answers must be PostgreSQL's answer, without noise, and its
operators must bind what they bind there, even where the answer would be the same. Nothing else may be raised than a
refusal. What is found is made as small as it stays a fault, and printed as a grammar case.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

import psycopg
import sqlglot

from dpsql.answering.answer import Answer
from dpsql.compliance.cases import Case, all_cases
from dpsql.compliance.lab import Lab
from dpsql.errors import EngineFailed, Error, InternalError
from dpsql.release import Measurement
from dpsql.tables import ExactTable
from grammar_tests.checks import binding_faults, oracle_faults
from grammar_tests.compare import difference
from grammar_tests.hostile import Hostile, words_of
from grammar_tests.oracle import Oracle, Truth

LARGE = 10**30
_POWERS = re.compile(r"\^|\b(pow|power|exp)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reading:
    """What became of a text, and what is wrong with that."""

    outcome: str
    fault: str | None = None


class Reader:
    def __init__(self, lab: Lab, oracle: Oracle, turned: Oracle) -> None:
        self._lab = lab
        self._oracle = oracle
        self._turned = turned

    def read(self, case: Case) -> Reading:
        try:
            answer, _ = self._lab.dataset(case.policy).answer(case)
        except (InternalError, EngineFailed) as error:
            return Reading("failed", f"{error.sqlstate}: {error.message}")
        except Error as error:
            return Reading(f"refused {error.sqlstate}")
        except AssertionError:
            return Reading("no query")  # a setting
        except Exception as error:
            return Reading("failed", f"{type(error).__name__}: {error}")
        fault = next(oracle_faults(case, answer, self._oracle), None)
        if fault is None:
            return Reading("answered", next(binding_faults(case, self._oracle), None))
        excuse = self._excuse(case, answer, fault)
        return Reading("answered", fault) if excuse is None else Reading(f"differs: {excuse}")

    def _excuse(self, case: Case, answer: Answer, fault: str) -> str | None:
        """The documented reason for which answers may differ, if one applies."""
        try:
            truth = self._oracle.ask(case.sql, case.params)
        except psycopg.Error as error:
            # Expressions are total: a value that PostgreSQL fails on is NULL.
            return "PostgreSQL fails on a value" if (error.sqlstate or "")[:2] in ("21", "22", "54") else None
        if fault.startswith("columns"):
            return None
        measured = [each for each in answer.release.measurements if each.statistics]
        if any(statistic.rank is not None for each in measured for statistic in each.statistics):
            return "a value at a rank is chosen on its grid, a little inside the ends"
        if any(_is_extreme(cell) for row in truth.rows for cell in row):
            return "a number beyond what dpsql counts with"
        if fault.startswith("another order") and _is_a_tie(case.sql, answer, truth):
            return "rows that tie in what they are ordered by"
        if _POWERS.search(case.sql) and _differ_in_last_digits(answer.table.rows, truth.rows):
            return "a power has fewer digits than PostgreSQL's"
        with suppress(psycopg.Error):
            if self._turned.ask(case.sql, case.params).rows != truth.rows:
                return "PostgreSQL may answer several things"
        listed = any(each.cells is not None and not each.statistics for each in answer.release.measurements)
        if listed and len(truth.rows) < len(answer.table.rows):
            return "a declared key without rows is there"
        exact = self._lab.dataset(case.policy).engine.found
        if any(_has_empty_cell(each, found) for each, found in zip(measured, exact, strict=True)):
            return "a sum of nothing is zero, and a declared key without rows is there"
        if any(each.keys for each in measured):
            if any(each.cells is None for each in measured):
                return "unknown keys have a threshold"
            if any(None in row for row in truth.rows):
                return "NULL is a key by declaration only"
        with suppress(Error):
            freely, _ = self._lab.dataset("wide").answer(replace(case, policy="wide", settings=()))
            if next(oracle_faults(case, freely, self._oracle), None) is None:
                return "the policy bounds what one person may add"
        return None


def _is_a_tie(text: str, answer: Answer, truth: Truth) -> bool:
    """Whether rows differ only in what they are not ordered by, or in an order by what is not shown."""
    places = []
    for item in sqlglot.parse_one(text, read="postgres").args["order"].expressions:
        target = item.this.unnest()
        if target.is_int and 1 <= target.to_py() <= len(truth.names):
            places.append(target.to_py() - 1)
        elif target.name in truth.names:
            places.append(truth.names.index(target.name))
        else:
            return True
    ours, theirs = ([tuple(row[i] for i in places) for row in rows] for rows in (answer.table.rows, truth.rows))
    return difference(answer.release, ours, theirs, ordered=True) is None


def _differ_in_last_digits(ours: Sequence[Sequence[object]], theirs: Sequence[Sequence[object]]) -> bool:
    """Whether rows, in any order, are the same but for a thousandth of their numbers."""

    def like(mine: object, other: object) -> bool:
        if isinstance(mine, bool) or isinstance(other, bool):
            return mine is other
        if isinstance(mine, int | float | Decimal) and isinstance(other, int | float | Decimal):
            return math.isclose(float(mine), float(other), rel_tol=1e-3)
        return mine == other

    rest = list(theirs)
    for row in ours:
        place = next((i for i, other in enumerate(rest) if all(map(like, row, other))), None)
        if place is None:
            return False
        rest.pop(place)
    return not rest


def _is_extreme(cell: object) -> bool:
    if isinstance(cell, Decimal) and cell.is_finite() and cell == 0:
        return int(cell.as_tuple().exponent) < -50
    return isinstance(cell, int | float | Decimal) and cell != 0 and not 1 / LARGE < abs(float(cell)) < LARGE


def _has_empty_cell(measurement: Measurement, found: Sequence[ExactTable]) -> bool:
    """Whether a cell that is answered has no rows."""
    present = min(len(table.keys) for table in found)
    if measurement.keys and measurement.cells is not None:
        return present < len(measurement.cells)
    return not measurement.keys and any(
        not table.sums or not all(column.any() for column in table.sums) for table in found
    )


def shrunk(case: Case, is_finding: Callable[[Case], bool]) -> Case:
    """As few words as it stays a finding with."""
    words = words_of(case.sql)
    size = max(len(words) // 2, 1)
    while size:
        start = 0
        while start < len(words):
            fewer = words[:start] + words[start + size :]
            if fewer and is_finding(replace(case, sql="".join(fewer))):
                words = fewer
            else:
                start += size
        size //= 2
    return replace(case, sql="".join(words))


def kind_of(fault: str) -> str:
    return " ".join(re.sub(r"[^A-Za-z ].*", "", fault).split()[:3])


def findings(reader: Reader, made: Iterator[Case], outcomes: Counter[str]) -> Iterator[str]:
    seen: set[str] = set()
    for case in made:
        reading = reader.read(case)
        outcomes[reading.outcome] += 1
        if reading.fault is None:
            continue
        kind = kind_of(reading.fault)

        def is_same(smaller: Case, kind: str = kind) -> bool:
            fault = reader.read(smaller).fault
            return fault is not None and kind_of(fault) == kind

        small = shrunk(case, is_same)
        shape = kind + re.sub(r"\w+", "x", small.sql)
        if shape not in seen:
            seen.add(shape)
            yield _as_case(small, reader.read(small).fault or "")


def _as_case(case: Case, fault: str) -> str:
    lines = [f"# {fault.splitlines()[0][:300]}"]
    if case.policy != "zcdp":
        lines.append(f"policy {case.policy}")
    if case.params:
        lines.append(f"params {list(case.params)}")
    return "\n".join([*lines, case.sql, "----\n"])


def texts(seed: int, seconds: float) -> Iterator[Case]:
    deadline = time.monotonic() + seconds
    for case in Hostile(all_cases(), seed):
        if time.monotonic() > deadline:
            return
        yield case


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m grammar_tests.readings")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    outcomes = Counter[str]()
    found = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(Lab(Path(folder))) as lab,
        closing(Oracle()) as oracle,
        closing(Oracle()) as turned,
    ):
        turned.turn()
        for finding in findings(Reader(lab, oracle, turned), texts(options.seed, options.seconds), outcomes):
            print(f"{finding}\n", flush=True)
            found += 1
    print(f"seed {options.seed}: " + ", ".join(f"{count} {name}" for name, count in outcomes.most_common()))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
