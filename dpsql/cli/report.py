"""Errors on the command line: what, where in the SQL, and what to do. Never a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from dpsql.errors import Error
from dpsql.policy.problems import PolicyProblems

_WIDTH = 100  # characters shown around the position in a long line of SQL


class Refusal(click.ClickException):
    """An error of dpsql, to be shown with all its fields."""

    exit_code = 1

    def __init__(self, error: Error, sql: str | None) -> None:
        super().__init__(describe(error, sql))

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(self.message, file=file, err=file is None)


@contextmanager
def refusals(sql: str | None = None) -> Iterator[None]:
    """Show the errors of dpsql that leave this block."""
    try:
        yield
    except Error as error:
        raise Refusal(error, sql) from None


def describe(error: Error, sql: str | None) -> str:
    """The message and its SQLSTATE, the line of SQL with a caret, detail and hint."""
    if isinstance(error, PolicyProblems):
        return error.message  # lists the problems itself, with files and lines
    lines = [f"error: {error.message} (SQLSTATE {error.sqlstate})"]
    if sql is not None and error.position is not None:
        lines += _place(sql, error.position)
    if error.detail is not None:
        lines.append(f"detail: {error.detail}")
    if error.hint is not None:
        lines.append(f"hint: {error.hint}")
    return "\n".join(lines)


def _place(sql: str, position: int) -> list[str]:
    offset = min(position - 1, len(sql))
    start = sql.rfind("\n", 0, offset) + 1
    line, column = sql[start:].partition("\n")[0], offset - start
    cut = max(0, column - _WIDTH // 2)
    # One column per character, so that the caret is in the right column.
    shown = "".join(character if character.isprintable() else " " for character in line[cut : cut + _WIDTH])
    number = sql.count("\n", 0, start) + 1
    label = f"line {number}: " if "\n" in sql.strip() else "  "
    return [label + shown.rstrip(), " " * (len(label) + column - cut) + "^"]


def describe_defect(error: Exception) -> str:
    """An unexpected exception: its type and place, without its text, which may contain values of the data."""
    place = "unknown"
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if "dpsql" in Path(code.co_filename).parts:
            place = f"{Path(code.co_filename).name}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return (
        f"error: internal error: {type(error).__name__} at {place} (SQLSTATE XX000)\n"
        "hint: This is a defect of dpsql. Please report this line and the statement."
    )
