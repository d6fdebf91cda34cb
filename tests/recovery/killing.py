"""Kills a process at each line between question and answer, and looks at what it leaves behind.

    python -m tests.recovery.killing killed POLICY        how many lines were tried, and what was wrong after each
    python -m tests.recovery.killing unprivileged POLICY  ask as somebody who may not write

This process never opens an engine, whose threads a fork would lose: its children do.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from dpsql.answering.dataset import Dataset
from dpsql.answering.open_dataset import open_dataset
from dpsql.answering.postprocess import Postprocessor
from dpsql.answering.purchases import Purchases
from dpsql.answering.rest import RestOfQueries
from dpsql.errors import Error
from dpsql.ledger import accounts
from dpsql.ledger.group_commit import GroupCommit
from dpsql.ledger.sql_ledger import SqlLedger
from dpsql.ledger.sqlite import SqliteLedger
from dpsql.noise import add_noise as apply
from dpsql.privacy.accounting import Price
from dpsql.release import QuerySettings
from tests import toy

ABOVE = "SELECT COUNT(*) FROM people WHERE income > (SELECT AVG(income) FROM people)"
FREE = Price()
NOBODY = 65_534

# Where a question goes.
STEPS: tuple[Callable[..., Any], ...] = (
    Dataset.answer,
    Purchases.bill,
    Purchases._charge,
    Dataset._measure,
    RestOfQueries.of_answer,
    SqlLedger.charge,
    SqlLedger.store,
    GroupCommit.do,
    GroupCommit._write,
    SqliteLedger._transact,
    accounts.pay,
    accounts._append,
    apply.add_noise,
    Postprocessor.run,
)
CODES: frozenset[CodeType] = frozenset(step.__code__ for step in STEPS)


class Watched:
    """An engine whose backend counts what it is asked, and does something before."""

    def __init__(self, policy: Path, *, new_ledger: bool = False) -> None:
        self.dataset = open_dataset(policy, new_ledger=new_ledger)
        self.asked = 0
        self.before: Callable[[], None] = lambda: None
        engine = self.dataset._engine
        execute = engine.execute

        def watched(*args: Any, **more: Any) -> Any:
            self.asked += 1
            self.before()
            return execute(*args, **more)

        engine.execute = watched  # type: ignore[method-assign]

    def close(self) -> None:
        self.dataset.close()


def ask(dataset: Dataset, sql: str, *, fresh: bool = False) -> tuple[Price, list[tuple[Any, ...]]]:
    found = dataset.answer(dataset.compile(sql, (), QuerySettings()), user="alice", sql=sql, fresh=fresh)
    return found.charged, found.table.rows


def is_sound(dataset: Dataset) -> bool:
    ledger = dataset.ledger
    assert isinstance(ledger, SqlLedger)
    return ledger.verify() == []


def in_child(work: Callable[[], object]) -> tuple[Any, bool]:
    """What a forked child makes of it, and whether it lived."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        status = 1
        try:
            with os.fdopen(writing, "wb") as out:
                out.write(pickle.dumps(work()))
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as found:
        said = found.read()
    _, status = os.waitpid(child, 0)
    return (pickle.loads(said) if said else None), status == 0  # noqa: S301 - of our own child


def killed_at(policy: Path, step: int) -> Callable[[], int]:
    """Ask, and be killed before the so many-th line of the way; how many there are, for one who is not killed."""

    def work() -> int:
        watched = Watched(policy)
        watched.before = lambda: mark(policy, "asked")
        release = watched.dataset.compile(ABOVE, (), QuerySettings())
        count = 0

        def on_line(_: FrameType, event: str, __: object) -> Any:
            nonlocal count
            if event == "line":
                count += 1
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)
            return on_line

        sys.settrace(lambda frame, _, __: on_line if frame.f_code in CODES else None)
        watched.dataset.answer(release, user="alice", sql=ABOVE)
        sys.settrace(None)
        mark(policy, "answered")
        return count

    return work


def mark(policy: Path, name: str) -> None:
    policy.with_name(name).write_text("yes")


def forget(policy: Path) -> None:
    for path in policy.parent.glob(f"{toy.DATABASE}.ledger*"):
        path.unlink()
    for name in ("asked", "answered"):
        policy.with_name(name).unlink(missing_ok=True)


def left_behind(policy: Path) -> list[str]:
    """What is wrong after a process was killed, and when it is asked again."""
    was_engaged = policy.with_name("asked").exists() or policy.with_name("answered").exists()
    with closing(Watched(policy)) as again:
        ledger, price = again.dataset.ledger, again.dataset.compile(ABOVE, (), QuerySettings()).price
        spent = ledger.spent()
        checks = {
            "the ledger contradicts itself": is_sound(again.dataset),
            f"{spent} was recorded": spent in (FREE, price),
            "the engine was asked, and nobody had paid": spent == price or not was_engaged,
        }
        ask(again.dataset, ABOVE)  # it goes on by itself
        checks |= {
            "it was paid more than twice": ledger.spent().loss <= 2 * price.loss,
            "it is not remembered": ask(again.dataset, ABOVE)[0] == FREE,
        }
    return [wrong for wrong, is_right in checks.items() if not is_right]


def killed(policy: Path) -> Iterator[str]:
    total, lived = in_child(killed_at(policy, 0))
    assert lived
    steps = range(1, total + 1, 1 if os.environ.get("DPSQL_ALL") else 8)
    yield str(len(steps))
    for step in steps:
        forget(policy)
        _, lived = in_child(killed_at(policy, step))
        wrong, looked = in_child(lambda: left_behind(policy))
        if lived or not looked:
            wrong = ["it lived" if lived else "it cannot be asked again"]
        yield from (f"line {step}: {each}" for each in wrong)


def unprivileged(policy: Path) -> Iterator[str]:
    if os.getuid() == 0:
        os.setuid(NOBODY)  # root may write anywhere
    try:
        with closing(Watched(policy)) as found:
            yield f"answered: {ask(found.dataset, ABOVE)}"
    except Error as error:
        yield f"refused: {error.message}"


if __name__ == "__main__":
    for line in {"killed": killed, "unprivileged": unprivileged}[sys.argv[1]](Path(sys.argv[2])):
        print(line, flush=True)
