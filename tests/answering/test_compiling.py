"""Compiling has limits of steps, time and memory, and ends when nobody waits for it."""

from __future__ import annotations

import itertools
import os
import re
import resource
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from dpsql.answering.compiling.nursery import FORK, STATUS
from dpsql.answering.dataset import Dataset
from dpsql.answering.open_dataset import open_engine
from dpsql.answering.session import Session
from dpsql.driver.dbapi import connect
from dpsql.effort import Cancellation, Effort, OutOfSteps, Stopped, limited, spend
from dpsql.errors import Cancelled, Error, TooComplex, TooManyFiles, UnknownColumn
from dpsql.policy.load import load
from tests import toy
from tests.compile_processes import compiling, hold, is_there, let_go, nursery_of
from tests.server.process import eventually

PATIENT = "compile_timeout = 600"
SMALL = "SELECT state, COUNT(*), AVG(income) FROM people GROUP BY state"
LARGE, HUGE = (
    f"SELECT {', '.join(f'COUNT(*) FILTER (WHERE age > {i % 100} AND income > {i})' for i in range(count))} FROM people"
    for count in (100, 1_500)
)


def policy_with(folder: Path, limits: str = "") -> Path:
    toy.create_database(folder / toy.DATABASE)
    policy = toy.write_policy(folder, users=("alice", "bob"))
    policy.write_text(f"{policy.read_text()}\n[limits]\n{limits}\n")
    return policy


@contextmanager
def dataset_with(folder: Path, limits: str = "", *, apart: bool = True) -> Iterator[Dataset]:
    with closing(open_engine(load(policy_with(folder, limits)), compiles_apart=apart)) as dataset:
        yield dataset


def refusal_of(dataset: Dataset, sql: str) -> Error:
    with pytest.raises(Error) as found:
        Session(dataset, "alice").explain(sql)
    return found.value


def test_steps_are_counted_in_the_thread_that_takes_them() -> None:
    effort = Effort(1_000)
    with limited(effort):
        spend(700)
        threading.Thread(target=spend, args=(10_000,)).start()
        spend(300)
        with pytest.raises(OutOfSteps):
            spend()
    spend(1_000_000)  # nobody counts
    assert effort.steps == 1_001


def test_steps_end_where_nobody_waits() -> None:
    with limited(Effort(10_000, lambda: True)), pytest.raises(Stopped):
        spend(5_000)


@pytest.mark.parametrize("apart", [False, True])
def test_too_many_steps(tmp_path: Path, apart: bool) -> None:
    with dataset_with(tmp_path, "max_compile_steps = 2_000", apart=apart) as dataset:
        refusal = refusal_of(dataset, LARGE)
        assert isinstance(refusal, TooComplex)
        assert refusal.sqlstate == "54001"
        assert refusal.message == "the query takes more than 2,000 steps to compile"
        assert "max_compile_steps" in (refusal.hint or "")
        assert Session(dataset, "alice").explain("SELECT COUNT(*) FROM people")


def test_keys_are_steps_too(tmp_path: Path) -> None:
    """A short text may have as many keys as an answer may have rows: each is listed, sorted and hashed."""
    with dataset_with(tmp_path, "max_compile_steps = 2_000") as dataset:
        refusal = refusal_of(dataset, "SELECT COUNT(*) FROM people GROUP BY smoker, joined")
        assert (refusal.sqlstate, refusal.message) == ("54001", "the query takes more than 2,000 steps to compile")


def test_the_same_steps_here_and_apart(tmp_path: Path) -> None:
    """Whether a query is refused does not depend on where it is compiled."""
    with dataset_with(tmp_path) as dataset:
        apart = Session(dataset, "alice").explain(SMALL)
    with closing(open_engine(load(tmp_path / "dpsql.toml"))) as dataset:
        assert Session(dataset, "alice").explain(SMALL) == apart


def test_too_long(tmp_path: Path) -> None:
    with dataset_with(tmp_path, "compile_timeout = 0.3") as dataset:
        refusal = refusal_of(dataset, HUGE)
        assert refusal.sqlstate == "57014"
        # On a busy machine the clock is first.
        assert re.search("more than 0.3 seconds of processor time|not compiled within 1.8 seconds", refusal.message)
        assert "compile_timeout" in (refusal.hint or "")


def test_time_that_others_take_does_not_count(tmp_path: Path) -> None:
    """The process stands still for longer than its query may take of the processor."""
    with dataset_with(tmp_path, "compile_timeout = 0.49") as dataset, ThreadPoolExecutor(1) as pool:
        children = held(dataset)
        asked = pool.submit(Session(dataset, "alice").explain, SMALL)
        eventually(lambda: dataset.compiling_long == 1)  # after half a second
        for child in children:
            let_go(child)
        assert asked.result(60)


def test_a_process_that_is_stuck_is_ended(tmp_path: Path) -> None:
    with dataset_with(tmp_path, "compile_timeout = 0.05") as dataset:
        children = held(dataset)
        refusal = refusal_of(dataset, SMALL)
        assert refusal.sqlstate == "57014"
        assert refusal.message == "the query was not compiled within 0.3 seconds because the machine is busy"
        assert "6 times compile_timeout" in (refusal.hint or "")
        eventually(lambda: not any(map(is_there, children)))


def test_too_much_memory(tmp_path: Path) -> None:
    with dataset_with(tmp_path, 'compile_memory = "4MB"') as dataset:
        refusal = refusal_of(dataset, HUGE)
        assert refusal.sqlstate == "54001"
        assert refusal.message == "the query takes more than 4MB of memory to compile"
        assert Session(dataset, "alice").explain("SELECT COUNT(*) FROM people")


def test_refusals_come_back_as_they_were(tmp_path: Path) -> None:
    with dataset_with(tmp_path) as dataset:
        refusal = refusal_of(dataset, "SELECT nosuch FROM people")
        assert isinstance(refusal, UnknownColumn)
        assert (refusal.message, refusal.position) == ('column "nosuch" does not exist', 8)


def test_chosen_clips_are_compiled_apart_too(tmp_path: Path) -> None:
    """What was accepted apart is bought, settled with the clip that was found, and replayed."""
    sql = "SELECT SUM(fee) FROM visits"
    policy = policy_with(tmp_path)
    text = policy.read_text()
    policy.write_text(text.replace("max_rows_per_unit = 10", "max_rows_per_unit = 50"))
    with closing(open_engine(load(policy), compiles_apart=True)) as dataset:
        session = Session(dataset, "alice")
        first = session.execute(sql)
        again = session.execute(sql)
        assert first is not None and again is not None
        assert getattr(first, "release").searches  # noqa: B009 - an Answer
        assert getattr(first, "table").rows == getattr(again, "table").rows  # noqa: B009


_NEW = itertools.count()  # a text that was compiled is remembered


def held(dataset: Dataset) -> list[int]:
    """The only process that is ready to compile does nothing any more; the next query gets it."""
    nursery = dataset._compiler._nursery
    while nursery._idle:
        nursery._idle.pop().close()
    while not nursery._idle:  # the process of a query that took long is not kept
        Session(dataset, "alice").explain(f"SELECT COUNT(*) FROM people WHERE age > {next(_NEW)}")
    (child,) = nursery._idle
    hold(child._pid)
    return [child._pid]


def test_cancelling_ends_the_process(tmp_path: Path) -> None:
    with dataset_with(tmp_path, PATIENT) as dataset, ThreadPoolExecutor(1) as pool:
        children, cancellation = held(dataset), Cancellation()
        asked = pool.submit(Session(dataset, "alice").explain, SMALL, (), cancellation)
        eventually(lambda: dataset.compiling == 1)
        cancellation.cancel()
        with pytest.raises(Cancelled, match="user request"):
            asked.result(60)
        eventually(lambda: not all(map(is_there, children)))
        assert dataset.compiling == 0


def test_a_short_text_does_not_wait_for_long_ones(tmp_path: Path) -> None:
    """One whose process hangs is long work after a moment; then all others have their places."""
    with dataset_with(tmp_path, PATIENT) as dataset, ThreadPoolExecutor(2) as pool:
        cancellations = [Cancellation(), Cancellation()]
        asked = []
        for number, cancellation in enumerate(cancellations):
            held(dataset)
            asked.append(pool.submit(Session(dataset, "alice").explain, f"{SMALL}{' ' * number}", (), cancellation))
            eventually(lambda number=number: dataset.compiling_long == number + 1)  # type: ignore[misc]
        assert Session(dataset, "alice").explain(f"{SMALL} -- short")
        assert Session(dataset, "bob").explain(f"{SMALL} -- another")
        for cancellation in cancellations:
            cancellation.cancel()
        assert all(isinstance(each.exception(60), Cancelled) for each in asked)


def test_a_process_that_was_killed_is_replaced(tmp_path: Path) -> None:
    with dataset_with(tmp_path) as dataset:
        assert Session(dataset, "alice").explain(SMALL)
        nursery = nursery_of(os.getpid())
        assert nursery is not None
        for pid in [*compiling(os.getpid()), nursery]:
            os.kill(pid, 9)
        eventually(lambda: not is_there(nursery))
        with pytest.raises(Error):  # the one that was ready is gone
            Session(dataset, "alice").explain(f"{SMALL} ")
        assert Session(dataset, "alice").explain(f"{SMALL}  ")


def test_nothing_is_left_when_the_dataset_is_closed(tmp_path: Path) -> None:
    with dataset_with(tmp_path) as dataset:
        children = held(dataset)
        nursery = nursery_of(os.getpid())
        assert nursery is not None
    eventually(lambda: not is_there(nursery))
    eventually(lambda: not any(map(is_there, children)))


def test_a_process_that_lost_who_uses_it_ends_without_a_word(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with dataset_with(tmp_path, apart=False) as dataset:
        nursery = dataset._compiler._nursery
        control, (ours, theirs) = nursery._start(), socket.socketpair()
        with ours, theirs:
            socket.send_fds(control, [FORK + bytes(STATUS.size)], [theirs.fileno()])
            control.close()  # before it has answered, as when the server is killed
            assert nursery._process is not None and nursery._process.wait(60) == 0
    assert capfd.readouterr().err == ""


@contextmanager
def no_more_files() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))), limits[1]))
    opened: list[int] = []
    try:
        with suppress(OSError):
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for each in opened:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_too_many_open_files_are_named(tmp_path: Path) -> None:
    with dataset_with(tmp_path, apart=False) as dataset:
        session, dataset._compiler._small = Session(dataset, "alice"), 0  # all of it apart, and nothing is started yet
        with no_more_files():
            started = refusal_of(dataset, SMALL)
        assert session.explain(SMALL)  # and it goes on
        dataset._compiler._nursery.child().close()  # none is idle any more
        with no_more_files():
            forked = refusal_of(dataset, f"{SMALL} ")
        assert session.explain(f"{SMALL} ")
    for error in (started, forked):
        assert isinstance(error, TooManyFiles) and error.sqlstate == "53000"
        assert "too many open files" in error.message and "ulimit -n" in (error.hint or "")


def test_the_driver_cancels_while_it_compiles(tmp_path: Path) -> None:
    """A text beyond the few steps of the own process is compiled in another, which a cancel ends."""
    with connect(policy_with(tmp_path, PATIENT), user="alice") as connection, ThreadPoolExecutor(1) as pool:
        cursor = connection.cursor()
        dataset = connection._session.dataset
        dataset._compiler._nursery.warm()
        (child,) = compiling(os.getpid())
        hold(child)
        asked = pool.submit(cursor.explain, HUGE)
        eventually(lambda: dataset.compiling == 1)
        cursor.cancel()
        with pytest.raises(Cancelled):
            asked.result(60)
        eventually(lambda: not is_there(child))
