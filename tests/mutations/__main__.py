"""Plants one defect after the other in a copy of the tree, and demands that its checks notice.

    python -m tests.mutations                 all of them, some twenty minutes
    python -m tests.mutations clip threshold  those whose names contain one of the words

A check that fails without any defect proves nothing: each is seen to pass first.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFECTS = Path(__file__).with_name("defects.toml")
PASSED, FAILED = 0, 1  # what pytest returns; everything else means that no test ran as it should
PATIENCE = 900.0  # seconds until a check that a defect has hung is taken for failed


@dataclass(frozen=True, slots=True)
class Defect:
    name: str
    file: str
    old: str
    new: str
    checks: str

    def planted(self, text: str) -> str:
        assert text.count(self.old) == 1, (
            f"{self.name}: the text is in {self.file} {text.count(self.old)} times, not once"
        )
        return text.replace(self.old, self.new)


def defects() -> list[Defect]:
    return [Defect(**entry) for entry in tomllib.loads(DEFECTS.read_text())["defect"]]


class Tree:
    """A copy of what git knows of the tree, as it is now."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        for name in listed.stdout.splitlines():
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, folder / name)

    @contextmanager
    def with_defect(self, defect: Defect) -> Iterator[None]:
        path = self._folder / defect.file
        sound = path.read_text()
        path.write_text(defect.planted(sound))
        try:
            yield
        finally:
            path.write_text(sound)

    def run(self, checks: str) -> int:
        """What pytest returns; the bytecode of another defect is never used."""
        command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *shlex.split(checks)]
        environment = os.environ | {"PYTHONPATH": str(self._folder), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            found = subprocess.run(
                command,
                cwd=self._folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return FAILED
        if found.returncode not in (PASSED, FAILED):
            print(found.stdout[-2_000:], found.stderr[-2_000:])
        return found.returncode


def main(words: list[str]) -> int:
    chosen = [defect for defect in defects() if not words or any(word in defect.name for word in words)]
    width = max((len(defect.name) for defect in chosen), default=0)
    missed = []
    with tempfile.TemporaryDirectory(prefix="mutations") as folder:
        tree = Tree(Path(folder))
        passes = cache(lambda checks: tree.run(checks) == PASSED)
        for defect in chosen:
            began = time.monotonic()
            if not passes(defect.checks):
                verdict = "THE CHECK FAILS WITHOUT IT"
            else:
                with tree.with_defect(defect):
                    verdict = "caught" if tree.run(defect.checks) == FAILED else "MISSED"
            if verdict != "caught":
                missed.append(defect.name)
            print(
                f"{defect.name.ljust(width)}  {verdict}  {time.monotonic() - began:4.0f} s  {defect.checks}", flush=True
            )
    print(f"{len(chosen) - len(missed)} of {len(chosen)} caught" + (f"; not: {', '.join(missed)}" if missed else ""))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
