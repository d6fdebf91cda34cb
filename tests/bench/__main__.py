"""`python -m tests.bench`: what dpsql costs beside the raw engine, as ratios measured side by side in one run.

Nothing here is asserted: machines are noisy. Each line says what was compared.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from tests.bench import against_peers, fence, parts, queries, serving
from tests.bench.datasets import ENGINES
from tests.bench.figures import HEADER, Figure, line, machine, plot, write_json

_QUICK, _FULL = (10_000, 1_000_000), (10_000, 100_000, 1_000_000, 10_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument(
        "what", nargs="*", help="sections: queries fixed peers wire fence start-up parts; all if none is named"
    )
    parser.add_argument("--full", action="store_true", help="up to ten million rows, and more repetitions")
    parser.add_argument("--rows", type=int, nargs="*", help="other sizes")
    parser.add_argument("--engine", choices=ENGINES, nargs="*", default=list(ENGINES))
    parser.add_argument("--workers", type=int, default=1, help="processes of the server")
    parser.add_argument("--folder", type=Path, help="keeps the environments of other systems; else they are temporary")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--plot", type=Path, help="draw cost against size into this file, .svg or .png")
    options = parser.parse_args()
    if options.plot and find_spec("matplotlib") is None:
        parser.error("--plot needs matplotlib")
    seconds = 5.0 if options.full else 1.0
    figures: list[Figure] = []

    def show(figure: Figure) -> None:
        figures.append(figure)
        print(line(figure), flush=True)

    def all_queries() -> None:
        for engine in options.dataset:
            for rows in options.rows or (_FULL if options.full else _QUICK):
                queries.against_raw(engine, rows, seconds, show)

    def fixed() -> None:
        for engine in options.dataset:
            queries.in_process(engine, 2 * seconds, show)

    def peers() -> None:
        with tempfile.TemporaryDirectory() as scratch:
            against_peers.fixed((options.folder or Path(scratch)) / "environments", show)

    def wire() -> None:
        arguments = () if options.workers == 1 else ("--workers", str(options.workers))
        serving.over_the_wire(2 * seconds, [1, 8, 64], show, arguments)

    def heavy() -> None:
        arguments = () if options.workers == 1 else ("--workers", str(options.workers))
        fence.beside_heavy_texts(4 * seconds, show, arguments)

    def all_parts() -> None:
        parts.samplers(show)
        parts.ledgers(seconds, show)

    sections: dict[str, Callable[[], None]] = {
        "queries": all_queries,
        "fixed": fixed,
        "peers": peers,
        "wire": wire,
        "fence": heavy,
        "start-up": lambda: serving.command_line(show),
        "parts": all_parts,
    }
    if unknown := set(options.what) - sections.keys():
        parser.error(f"no such section: {', '.join(sorted(unknown))}")
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    print(HEADER)
    for name, measure in sections.items():
        if not options.what or name in options.what:
            measure()
    if options.json:
        write_json(options.json, figures)
    if options.plot:
        plot(options.plot, figures)


if __name__ == "__main__":
    main()
