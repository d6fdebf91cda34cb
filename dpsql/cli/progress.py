"""Runs a query at a terminal: a progress line, and cancellation by Ctrl-C."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from dpsql.errors import Cancelled

if TYPE_CHECKING:
    from dpsql.driver.dbapi import Connection, Cursor

_PATIENCE = 0.5  # seconds before the progress line appears
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_CLEAR = "\r\x1b[K"


def run(cursor: Cursor, sql: str, parameters: Mapping[str, object] | None = None) -> None:
    """Execute a statement. An interrupt cancels it, and raises an error that explains what was charged."""
    try:
        with _progress():
            cursor.execute(sql, parameters)
    except KeyboardInterrupt:
        raise Cancelled(
            "the query was cancelled",
            detail="What was charged for it stays charged.",
            hint="Parts that were already released are stored: the same query again does not pay for them twice.",
        ) from None


def say_if_ledger_is_new(connection: Connection) -> None:
    """Warn if a new ledger was created, as the old one may be missing."""
    if connection.has_new_ledger:
        click.echo("there was no ledger: a new one was created, in which nothing is spent", err=True)
    if connection.has_adopted_units:
        click.echo(
            "the ledger had no record of whom it protects: from now on it counts for the units of this policy", err=True
        )


def footer(cursor: Cursor) -> list[str]:
    """Cautions about the last answer, its price and what is left; empty after a statement that is not a query."""
    if cursor.cost is None:
        return []
    left = cursor.connection.budget.left
    price = f"price: {cursor.cost}; paid now: {cursor.cost.charged}; left: {left}"
    return [*(f"caution: {caution}" for caution in cursor.cautions), price]


@contextmanager
def _progress() -> Iterator[None]:
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    spinner = threading.Thread(target=_spin, args=(done,), daemon=True)
    spinner.start()
    try:
        yield
    finally:
        done.set()
        spinner.join()


def _spin(done: threading.Event) -> None:
    started = time.monotonic()
    if done.wait(_PATIENCE):
        return
    for frame in itertools.cycle(_FRAMES):
        seconds = time.monotonic() - started
        click.echo(f"\r{frame} {seconds:.0f} s (Ctrl-C cancels)", err=True, nl=False)
        if done.wait(0.1):
            break
    click.echo(_CLEAR, err=True, nl=False)
