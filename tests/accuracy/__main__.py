"""`python -m tests.accuracy`: how far off dpsql is beside other systems, at the same bounds and the same epsilon.

The other systems are installed in environments of their own and really run. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from dpsql.privacy.accounting import rho_from_epsilon
from tests.accuracy import naive, oracle, report, with_dpsql
from tests.accuracy.asked import Answers, Case, Task
from tests.accuracy.cases import cases
from tests.accuracy.data import DELTA, EPSILON, KEY_DELTA, AccuracyData, dataset
from tests.accuracy.measure import DPSQL, NAIVE, OPENDP, ORACLE, SMARTNOISE, SYSTEMS, Figure, Line, Truth
from tests.accuracy.plot import plot
from tests.peers import environments
from tests.peers.environments import Environment, NotInstalled, environment

_HERE = Path(__file__).parent
_PEERS = {
    SMARTNOISE: (environments.SMARTNOISE, _HERE / "peer_smartnoise.py"),
    OPENDP: (environments.OPENDP, _HERE / "peer_opendp.py"),
}
_SESSIONS = 25  # for so many runs of one query, one session of fifty: that many answers are enough


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy", description=__doc__)
    parser.add_argument("only", nargs="*", help="cases whose label contains one of these words; all if none is named")
    parser.add_argument("--systems", nargs="*", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--size", type=int, default=100_000, help="how many people are made up")
    parser.add_argument("--folder", type=Path, help="keeps environments and data; a temporary folder if not given")
    parser.add_argument("--json", type=Path, help="write figures here; those of other systems in it are kept")
    parser.add_argument("--beside", type=Path, nargs="*", default=[], help="show the figures of these files as well")
    parser.add_argument("--table", type=Path, help="write the table here")
    parser.add_argument("--plot", type=Path, help="draw it into this file, .svg or .png")
    options = parser.parse_args()
    if options.plot and find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib")
    chosen = [case for case in cases() if not options.only or any(word in case.label for word in options.only)]
    with tempfile.TemporaryDirectory() as scratch:
        folder: Path = options.folder or Path(scratch)
        lines = _lines(chosen, folder, options.systems, options.runs, options.size, options.json, options.beside)
    if options.table:
        options.table.write_text(report.table(lines) + "\n")
    if options.plot:
        plot(options.plot, lines)
    for title, said in (("cannot", report.refusals(lines)), ("missed", report.missed(lines))):
        print(f"\n{title}:", *(said or ["nothing"]), sep="\n  ")


def _lines(
    chosen: list[Case], folder: Path, systems: list[str], runs: int, size: int, path: Path | None, beside: list[Path]
) -> list[Line]:
    known: dict[str, dict[str, Figure]] = {}
    about: dict[str, object] = {"epsilon": EPSILON, "delta": DELTA, "people": size}
    for file in [*beside, *([path] if path else [])]:
        figures, said = report.read_json(file)
        about |= said
        for label, found in figures.items():
            known.setdefault(label, {}).update(found)
    peers = {name: _environment(name, folder) for name in _PEERS if name in systems}
    about |= {name: peer.version if isinstance(peer, Environment) else peer for name, peer in peers.items()}
    lines = []
    print(report.HEADER, report.RULE, sep="\n")
    for case in chosen:
        line = Line(case, dict(known.get(case.label, {})))
        if systems:
            _measure(line, dataset(case.data, folder / "data", size), systems, peers, runs)
        lines.append(line)
        print(report.row(line), flush=True)
        if path:
            report.write_json(path, lines, about)
    return lines


def _environment(name: str, folder: Path) -> Environment | str:
    try:
        return environment(_PEERS[name][0], folder / "environments")
    except NotInstalled as fault:
        return str(fault)


def _measure(
    line: Line, data: AccuracyData, systems: list[str], peers: dict[str, Environment | str], runs: int
) -> None:
    case = line.case
    table, columns = data.tables[case.table], data.columns(case.table)
    truth = Truth(case, table, columns)
    if len(case.queries) > 1:
        runs = max(1, runs // _SESSIONS)
    ways: dict[str, Callable[[], Answers]] = {
        DPSQL: lambda: with_dpsql.answers(case, data, runs),
        NAIVE: lambda: naive.answers(case, table, columns, runs),
        ORACLE: lambda: oracle.answers(case, table, columns, runs, float(_rho(case))),
        **{name: partial(_peer, name, found, case, data, runs) for name, found in peers.items()},
    }
    for system in systems:
        line.figures[system] = truth.figure(ways[system]())


def _rho(case: Case) -> Fraction:
    return rho_from_epsilon(Fraction(EPSILON), Fraction(DELTA) - (Fraction(KEY_DELTA) if case.unknown else 0))


def _peer(name: str, found: Environment | str, case: Case, data: AccuracyData, runs: int) -> Answers:
    if isinstance(found, str):
        return Answers(refused=found)
    task = Task(
        str(data.flat(case.table)),
        data.tables[case.table],
        case.queries,
        case.accounting,
        EPSILON,
        float(DELTA),
        float(_rho(case)),
        float(KEY_DELTA),
        runs,
    )
    answers = Answers()
    for answer in found.run(_PEERS[name][1], task.as_json()):
        if "refused" in answer:
            return Answers(refused=answer["refused"])
        answers.runs.append(answer["runs"])
    return answers


if __name__ == "__main__":
    main()
