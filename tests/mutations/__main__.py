"""Plants one defect after the other in a copy of the tree, and demands that its checks notice.

    python -m tests.mutations                 all of them, an hour or so on two idle cores
    python -m tests.mutations clip threshold  those whose names contain one of the words
    python -m tests.mutations --write         all of them, and README.md says what was seen

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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parents[2]
DEFECTS = Path(__file__).with_name("defects.toml")
TABLE = Path(__file__).with_name("README.md")
CAUGHT = "caught"
PASSED, FAILED = 0, 1  # what pytest returns; everything else means that no test ran as it should
AT_ONCE = 2
PATIENCE = 900.0  # seconds until a check that a defect has hung is taken for failed


@dataclass(frozen=True, slots=True)
class Defect:
    name: str
    file: str
    old: str
    new: str
    checks: str

    def fits(self, text: str) -> bool:
        return text.count(self.old) == 1

    def planted(self, text: str) -> str:
        assert self.fits(text)
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

    def fits(self, defect: Defect) -> bool:
        return defect.fits((self._folder / defect.file).read_text())

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


@dataclass(frozen=True, slots=True)
class Seen:
    defect: Defect
    verdict: str
    seconds: float


def verdict(tree: Tree, passes: Callable[[str], bool], defect: Defect) -> str:
    if not tree.fits(defect):
        return "DOES NOT FIT"
    if not passes(defect.checks):
        return "THE CHECK FAILS WITHOUT IT"
    with tree.with_defect(defect):
        return CAUGHT if tree.run(defect.checks) == FAILED else "MISSED"


def run(chosen: Sequence[Defect]) -> Iterator[Seen]:
    """What was seen of each, in their order; two at a time, each in a copy of its own."""
    with tempfile.TemporaryDirectory(prefix="mutations") as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        sound = Tree(Path(folder) / "sound")
        trees: Queue[Tree] = Queue()
        for number in range(AT_ONCE):
            trees.put(Tree(Path(folder) / str(number)))
        checked: dict[str, Future[int]] = {}
        for defect in chosen:
            if defect.checks not in checked:
                checked[defect.checks] = pool.submit(sound.run, defect.checks)

        def see(defect: Defect) -> Seen:
            tree = trees.get()
            began = time.monotonic()
            try:
                found = verdict(tree, lambda checks: checked[checks].result() == PASSED, defect)
                return Seen(defect, found, time.monotonic() - began)
            finally:
                trees.put(tree)

        yield from pool.map(see, chosen)


def table(seen: Sequence[Seen]) -> str:
    caught = sum(each.verdict == CAUGHT for each in seen)
    rows = [f"| {each.defect.name} | `{each.defect.file}` | `{each.defect.checks}` | {each.verdict} |" for each in seen]
    lines = [
        "# Planted defects",
        "",
        "Each breaks one rule, and one of its checks must fail. Written by `python -m tests.mutations --write`;",
        f"the defects are in `defects.toml`. When it was written, {caught} of {len(seen)} were caught.",
        "",
        "| defect | in | checks | verdict |",
        "| --- | --- | --- | --- |",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def main(words: list[str]) -> int:
    is_written = words == ["--write"]
    chosen = [each for each in defects() if is_written or not words or any(word in each.name for word in words)]
    width = max((len(each.name) for each in chosen), default=0)
    seen = []
    for each in run(chosen):
        seen.append(each)
        print(
            f"{each.defect.name.ljust(width)}  {each.verdict}  {each.seconds:4.0f} s  {each.defect.checks}", flush=True
        )
    missed = [each.defect.name for each in seen if each.verdict != CAUGHT]
    print(f"{len(seen) - len(missed)} of {len(seen)} caught" + (f"; not: {', '.join(missed)}" if missed else ""))
    if is_written:
        TABLE.write_text(table(seen))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
