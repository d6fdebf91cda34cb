"""python -m grammar_tests --rewrite [FILE …]: write what the engine says today under the dashes. Then read the diff."""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from contextlib import closing
from pathlib import Path

from dpsql.compliance.cases import CASES, all_files, read, rewritten
from dpsql.compliance.lab import Lab
from grammar_tests.checks import expected_text
from grammar_tests.tpch_data import TPCH, make
from grammar_tests.tpch_dataset import TpchDataset


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m grammar_tests", description="Grammar tests run under pytest.")
    parser.add_argument("--rewrite", action="store_true", required=True, help="regenerate the expectations")
    parser.add_argument("files", nargs="*", help='names in cases/, or "tpch"; all of cases/ if there are none')
    files = parser.parse_args().files
    if files == ["tpch"]:
        return _rewrite_tpch()
    chosen = [CASES / Path(name).name for name in files] or all_files()
    failures = 0
    with tempfile.TemporaryDirectory() as directory, closing(Lab(Path(directory))) as lab:
        for path in chosen:
            failures += _rewrite(path, lab)
    return 1 if failures else 0


def _rewrite_tpch() -> int:
    with tempfile.TemporaryDirectory() as directory, closing(TpchDataset(make(Path(directory), 0.01))) as dataset:
        for path in sorted(TPCH.glob("q*.txt")):
            path.write_text(rewritten(path, {case.line: dataset.expected(case) for case in read(path)}))
    return 0


def _rewrite(path: Path, lab: Lab) -> int:
    """A case on which the engine breaks keeps what it has."""
    expectations, failures = {}, 0
    for case in read(path):
        if case.problem is not None:
            print(f"{case.name}: {case.problem}", file=sys.stderr)
        try:
            expectations[case.line] = expected_text(case, lab.dataset(case.policy))
        except Exception:
            failures += 1
            print(f"{case.name}: {case.sql}\n{traceback.format_exc()}", file=sys.stderr)
    path.write_text(rewritten(path, expectations))
    return failures


if __name__ == "__main__":
    sys.exit(main())
