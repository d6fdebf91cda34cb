"""Made-up queries over the toy policy: python -m grammar_tests.fuzz [--seconds N] [--seed N].

Each query is refused with a SQLSTATE, or answered; and then no person moves a sum further than stated, on data that
breaks every bound. Anything else (another exception, an engine that fails, a sum that moves too far) is a finding: it
is made as small as it stays one, and printed as a grammar case.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from dpsql.compliance.cases import Case
from dpsql.compliance.lab import Lab
from dpsql.errors import EngineFailed, Error, InternalError
from grammar_tests.checks import neighbour_faults
from grammar_tests.neighbours import DuckDBNeighbourhood, Neighbourhood

# What may stand behind FROM, and whose columns its aliases then have.
SOURCES: dict[str, tuple[str, ...]] = {
    "people AS p": ("p",),
    "visits AS v": ("v",),
    "surveys AS s": ("s",),
    "items AS i": ("i",),
    "people AS p JOIN visits AS v ON v.patient_id = p.id": ("p", "v"),
    "people AS p LEFT JOIN visits AS v ON v.patient_id = p.id": ("p", "v"),
    "people AS p FULL JOIN surveys AS s ON s.person_id = p.id": ("p", "s"),
    "visits AS v JOIN items AS i ON i.visit_id = v.id": ("v", "i"),
    "people AS p JOIN states AS t ON t.code = p.state": ("p", "t"),
    "people AS p JOIN people AS v ON v.city = p.city": ("p",),
    "(SELECT patient_id, COUNT(*) AS n, MAX(fee) AS m FROM visits GROUP BY patient_id) AS g": ("g",),
    "(SELECT age, income, sex FROM people UNION ALL SELECT minutes, score, kind FROM visits) AS u": ("u",),
    "(SELECT *, row_number() OVER (PARTITION BY patient_id ORDER BY day) AS r FROM visits) AS w": ("w",),
}
NUMBERS = {
    "p": ("age", "income", "height", "children", "points", "debt", "id"),
    "v": ("fee", "score", "minutes", "id"),
    "s": ("mood", "hours"),
    "i": ("price", "quantity", "weight", "line"),
    "t": ("population",),
    "g": ("n", "m"),
    "u": ("age", "income"),
    "w": ("fee", "minutes", "r"),
}
KEYS = {
    "p": ("sex", "state", "city", "smoker", "note", "joined"),
    "v": ("kind", "clinic", "urgent", "day"),
    "s": ("answer", "mood"),
    "i": ("article",),
    "t": ("region",),
    "g": ("n",),
    "u": ("sex",),
    "w": ("kind", "clinic"),
}
_CONSTANTS = ("0", "1", "-7", "53063", "0.5", "1e300", "NULL", "9223372036854775807", "2")
_ONE = ("-({})", "ABS({})", "SQRT({})", "LN({})", "EXP({})", "ROUND({})", "FLOOR({})", "SIGN({})", "CAST({} AS int)")
_TWO = (
    "({} + {})",
    "({} - {})",
    "({} * {})",
    "({} / {})",
    "({} % {})",
    "LEAST({}, {})",
    "GREATEST({}, {})",
    "COALESCE({}, {})",
)
_AGGREGATES = (
    "COUNT(*)", "COUNT({})", "SUM({})", "AVG({})", "STDDEV({})", "COUNT(DISTINCT {})", "SUM(DISTINCT {})", "MAX({})",
    "SUM(LEAST(GREATEST({}, -5), 5))", "AVG(LEAST(GREATEST({}, 0), 100))", "COUNT(*) FILTER (WHERE {} > 3)",
)  # fmt: skip
_TESTS = ("{} > {}", "{} = {}", "{} IS NULL", "{} BETWEEN {} AND {}", "{} IN ({}, {})", "NOT {} < {}")
_ABOVE = ("", "", "", " HAVING COUNT(*) > 2", " ORDER BY 1", " ORDER BY 1 DESC LIMIT 2")


@dataclass(frozen=True, slots=True)
class Query:
    """A query in parts, so that parts can be left out."""

    source: str
    aggregates: tuple[str, ...]
    conditions: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    above: str = ""

    def __str__(self) -> str:
        where = f" WHERE {' AND '.join(self.conditions)}" if self.conditions else ""
        group = f" GROUP BY {', '.join(self.keys)}" if self.keys else ""
        return f"SELECT {', '.join([*self.keys, *self.aggregates])} FROM {self.source}{where}{group}{self.above}"

    def smaller(self) -> Iterator[Query]:
        yield replace(self, above="") if self.above else self
        for name in ("aggregates", "conditions", "keys"):
            parts: tuple[str, ...] = getattr(self, name)
            for place in range(len(parts)):
                rest = (*parts[:place], *parts[place + 1 :])
                if rest or name != "aggregates":
                    yield Query(**{**_parts(self), name: rest})  # type: ignore[arg-type]


def _parts(query: Query) -> dict[str, object]:
    names = ("source", "aggregates", "conditions", "keys", "above")
    return {name: getattr(query, name) for name in names}


class Maker:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311

    def query(self) -> Query:
        pick = self._random.choice
        source = pick(list(SOURCES))
        aliases = SOURCES[source]
        keys = dict.fromkeys(self._column(KEYS, aliases) for _ in range(pick((0, 0, 1, 1, 2))))
        return Query(
            source,
            tuple(self._filled(pick(_AGGREGATES), aliases) for _ in range(pick((1, 1, 2, 3)))),
            tuple(self._filled(pick(_TESTS), aliases) for _ in range(pick((0, 1, 1, 2)))),
            tuple(keys),
            pick(_ABOVE),
        )

    def _filled(self, template: str, aliases: Sequence[str]) -> str:
        return template.format(*(self._number(aliases, 2) for _ in range(template.count("{}"))))

    def _number(self, aliases: Sequence[str], depth: int) -> str:
        pick = self._random.choice
        match self._random.randrange(6 if depth else 3):
            case 0:
                return pick(_CONSTANTS)
            case 1 | 2:
                return self._column(NUMBERS, aliases)
            case 3:
                return str(pick(_ONE)).format(self._number(aliases, depth - 1))
            case 4:
                return str(pick(_TWO)).format(self._number(aliases, depth - 1), self._number(aliases, depth - 1))
            case _:
                test, yes = self._number(aliases, 0), self._number(aliases, depth - 1)
                return f"CASE WHEN {test} > {self._number(aliases, 0)} THEN {yes} ELSE {self._number(aliases, 0)} END"

    def _column(self, columns: dict[str, tuple[str, ...]], aliases: Sequence[str]) -> str:
        alias = self._random.choice(list(aliases))
        return f"{alias}.{self._random.choice(columns[alias])}"


def fault(query: Query, lab: Lab, neighbourhoods: Sequence[Neighbourhood]) -> tuple[str, str | None]:
    """What became of a query, and what is wrong with that."""
    case = Case(Path("fuzz"), 0, str(query), "")
    try:
        answer, asked = lab.dataset("zcdp").answer(case)
        for neighbourhood in neighbourhoods:
            for found in neighbour_faults(answer.release, asked, neighbourhood):
                return "answered", found
    except (InternalError, EngineFailed) as error:
        return "failed", f"{error.sqlstate}: {error.message}"
    except Error as error:
        return f"refused {error.sqlstate}", None
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
    return "answered", None


def shrunk(query: Query, fails: Callable[[Query], bool]) -> Query:
    """The smallest query on the way that still fails."""
    while True:
        for smaller in query.smaller():
            if smaller != query and fails(smaller):
                query = smaller
                break
        else:
            return query


def fuzz(
    lab: Lab, neighbourhoods: Sequence[Neighbourhood], seed: int, seconds: float
) -> tuple[Counter[str], list[str]]:
    maker, outcomes, findings = Maker(seed), Counter[str](), list[str]()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        query = maker.query()
        outcome, wrong = fault(query, lab, neighbourhoods)
        outcomes[outcome] += 1
        if wrong is not None:
            small = shrunk(query, lambda each: fault(each, lab, neighbourhoods)[1] is not None)
            findings.append(f"# {fault(small, lab, neighbourhoods)[1]}\n{small}\n----\n")
    return outcomes, findings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m grammar_tests.fuzz")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, closing(Lab(Path(folder))) as lab:
        names = ("toy.duckdb", "dirty.duckdb")
        neighbourhoods = [DuckDBNeighbourhood(lab.directory / name) for name in names]
        outcomes, findings = fuzz(lab, neighbourhoods, options.seed, options.seconds)
        for each in neighbourhoods:
            each.close()
    print(f"seed {options.seed}: " + ", ".join(f"{count} {name}" for name, count in outcomes.most_common()))
    for found in dict.fromkeys(findings):
        print(f"\n{found}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
