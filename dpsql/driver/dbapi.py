"""The PEP 249 driver, with extensions: explain, cost, margins, budget, cancel, data frames.

It reads the database with the rights of the calling process: `user` names the account that pays, and authenticates no
one. Analysts who must not see the data connect to a server instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import date, datetime, time
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from dpsql import errors
from dpsql.answering.answer import Answer
from dpsql.answering.dataset import Dataset
from dpsql.answering.open_dataset import open_dataset
from dpsql.answering.session import Session, SessionSettings
from dpsql.driver import display as notebook
from dpsql.driver import frames
from dpsql.driver.display import Column
from dpsql.driver.placeholders import Bound, Parameters, bind
from dpsql.effort import Cancellation
from dpsql.errors import Error, InterfaceError, NotSupportedError, ProgrammingError
from dpsql.ledger.waiting import interruptible
from dpsql.policy.load import load
from dpsql.policy.model import Catalog
from dpsql.privacy.accounting import Accountant, Price
from dpsql.tables import ResultTable
from dpsql.types import Cell, Kind, Type

apilevel = "2.0"
threadsafety = 2  # threads may share a connection, whose queries run one after the other, but not a cursor
paramstyle = "pyformat"

Row = tuple[Cell, ...]
Description = tuple[str, str, None, None, int | None, int | None, None]
Result = TypeVar("Result")


def connect(
    policy: str | os.PathLike[str] = "dpsql.toml",
    user: str | None = None,
    *,
    new_ledger: bool = False,
    timezone: str = "UTC",
) -> Connection:
    """Open the dataset that a policy file describes.

    `user` names the account that pays. It is bookkeeping, not authentication: this process reads the database with
    its own rights. It may be left out if the policy has exactly one user.

    `new_ledger` is the owner's permission to create a ledger that the policy names and that does not exist: a new one
    has no record of what was spent before.

    `timezone` is the time zone in which dates and times are read and shown, as with `SET TimeZone`.
    """
    settings = SessionSettings()
    settings.set_zone(timezone)
    path = Path(policy)
    name = _only_user(path) if user is None else user
    dataset = open_dataset(path, new_ledger=new_ledger)
    try:
        return Connection(Session(dataset, name, settings))
    except BaseException:
        dataset.close()
        raise


def _only_user(path: Path) -> str:
    match list(load(path).users):
        case [only]:
            return only
        case []:
            raise InterfaceError("the policy has no user", hint="Add a section [users.NAME] to the policy.")
        case several:
            raise InterfaceError("the policy has several users", hint=f"Name one of them: {', '.join(several)}.")


# --- prices ---


@dataclass(frozen=True, slots=True)
class Amount:
    """A price or a budget in epsilon. `grains` is the exact number that the ledger keeps."""

    epsilon: float
    delta: float
    rho: float | None  # the additive quantity under zcdp accounting; None under basic, where it is epsilon
    pure: float | None  # under zcdp, the epsilon of pure answers, which add up among themselves
    grains: Price

    def __str__(self) -> str:
        parts = []
        if self.grains.loss:
            rho = "" if self.rho is None else f" (rho {self.rho:.4g})"
            parts.append(f"epsilon {self.epsilon:.4g}{rho}")
        if self.grains.delta and (parts or not self.pure):
            parts.append(f"delta {self.delta:.4g}")
        if self.pure:
            parts.append(f"{'or ' if parts else ''}epsilon {self.pure:.4g} as pure")
        return ", ".join(parts) or "nothing"


@dataclass(frozen=True, slots=True)
class Cost(Amount):
    """The price of a query, and what this user was charged for it: nothing if they had paid for the answer before."""

    charged: Amount

    __str__ = Amount.__str__


@dataclass(frozen=True, slots=True)
class Budget:
    """What the user has spent, and can still spend before their allowance or the dataset's total is used up."""

    spent: Amount
    left: Amount


def _amount(price: Price, accountant: Accountant) -> Amount:
    is_zcdp = accountant.policy.accounting == "zcdp"
    rho = float(price.loss_value) if is_zcdp else None
    pure = None if price.pure_value is None or not is_zcdp else float(price.pure_value)
    return Amount(float(accountant.epsilon_of(price.loss)), float(price.delta_value), rho, pure, price)


# --- connections ---


class Connection:
    """One user's access to one dataset. There are no transactions: what was paid stays paid.

    A thread of its own runs the queries, so that the calling thread can be interrupted meanwhile.
    """

    Warning = errors.Warning
    Error = errors.Error
    InterfaceError = errors.InterfaceError
    DatabaseError = errors.DatabaseError
    DataError = errors.DataError
    OperationalError = errors.OperationalError
    IntegrityError = errors.IntegrityError
    InternalError = errors.InternalError
    ProgrammingError = errors.ProgrammingError
    NotSupportedError = errors.NotSupportedError

    def __init__(self, session: Session) -> None:
        """Use `connect`."""
        self._session = session
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dpsql connection")
        self._closed = False

    @property
    def user(self) -> str:
        """The user whose account pays."""
        return self._session.user

    @property
    def budget(self) -> Budget:
        """What this user has spent and has left."""
        self._require_open()
        dataset = self._dataset
        spent, left = dataset.ledger.spent(self.user), dataset.ledger.remaining(self.user)
        return Budget(_amount(spent, dataset.accountant), _amount(left, dataset.accountant))

    @property
    def has_new_ledger(self) -> bool:
        """Whether the ledger was created by this connection, so that nothing counts as spent."""
        return self._dataset.ledger.begun

    @property
    def has_adopted_units(self) -> bool:
        """Whether the ledger had charges but no record of the protected units, and took them from the policy."""
        return self._dataset.ledger.adopted

    @property
    def catalog(self) -> Catalog:
        """The declared tables and columns."""
        return self._dataset.catalog

    def cursor(self) -> Cursor:
        self._require_open()
        return Cursor(self)

    def commit(self) -> None:
        """Do nothing: there are no transactions, and a charge is durable before its query runs."""
        self._require_open()

    def rollback(self) -> None:
        """Do nothing: there are no transactions, and a charge is never returned."""
        self._require_open()

    def close(self) -> None:
        """Close the database and the ledger, after running queries have ended. Idempotent."""
        if not self._closed:
            self._closed = True
            self._worker.shutdown()
            self._dataset.close()

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _dataset(self) -> Dataset:
        return self._session.dataset

    def _require_open(self) -> None:
        if self._closed:
            raise InterfaceError("the connection is closed")

    def _run(self, task: Callable[[Session], Result], cancellation: Cancellation) -> Result:
        """Run a task in the connection's thread. An interrupt here (Ctrl-C) cancels it there."""

        def run_unless_cancelled() -> Result:
            cancellation.check()
            with interruptible(cancellation):
                return task(self._session)

        try:
            future = self._worker.submit(run_unless_cancelled)
        except RuntimeError:
            raise InterfaceError("the connection is closed") from None
        try:
            wait([future])
        except BaseException:
            cancellation.cancel()
            raise
        return future.result()


# --- cursors ---


class Cursor:
    """Runs statements and returns their rows."""

    lastrowid = None  # nothing is ever written

    def __init__(self, connection: Connection) -> None:
        """Use `Connection.cursor`."""
        self.connection = connection
        self.arraysize = 1
        self._closed = False
        self._table: ResultTable | None = None
        self._answer: Answer | None = None
        self._next = 0
        self._running: Cancellation | None = None

    # --- the last statement ---

    @property
    def description(self) -> tuple[Description, ...] | None:
        """Name, type code, precision and scale of each column; None if the last statement returned no rows."""
        if self._table is None:
            return None
        return tuple(map(_described, self._table.names, self._table.types))

    @property
    def rowcount(self) -> int:
        return -1 if self._table is None else len(self._table.rows)

    @property
    def rownumber(self) -> int | None:
        """The index of the row that is fetched next."""
        return None if self._table is None else self._next

    @property
    def cost(self) -> Cost | None:
        """The price of the last query, and what was charged for it; None if the last statement was not a query."""
        if self._answer is None:
            return None
        accountant = self.connection._dataset.accountant
        price = _amount(self._answer.release.price, accountant)
        charged = _amount(self._answer.charged, accountant)
        return Cost(price.epsilon, price.delta, price.rho, price.pure, price.grains, charged)

    @property
    def margins(self) -> tuple[int | float | None, ...] | None:
        """Per column, the 95 % margin where it is the same in all rows: that of one noisy count or sum."""
        if self._answer is None:
            return None
        margins = [output.margin_of_all for output in self._answer.release.outputs]
        return tuple(m if m is None else m.numerator if m.denominator == 1 else float(m) for m in margins)

    @property
    def noise_only(self) -> tuple[bool, ...] | None:
        """Per column, whether its margins cover the noise only: bounds may cut off part of its numbers.

        These margins are shown with an asterisk, and `cautions` names the bounds. It follows from query and policy.
        """
        return None if self._answer is None else tuple(o.noise_only for o in self._answer.release.outputs)

    @property
    def row_margins(self) -> list[tuple[int | float | None, ...]]:
        """Per row and value, the 95 % margin of every noisy number, including ratios.

        For all rows of the answer, fetched or not. None where a value is exact or NULL, infinite where it is noisy and
        no margin is known.
        """
        if self._table is None:
            return []
        if self._answer is None:
            return [(None,) * len(self._table.names)] * len(self._table.rows)
        return self._answer.margins

    @property
    def columns(self) -> tuple[Column, ...] | None:
        """Name, type and margin of each column; None if the last statement returned no rows."""
        if self._table is None:
            return None
        margins = self.margins or (None,) * len(self._table.names)
        outputs = () if self._answer is None else self._answer.release.outputs
        varies = [output.noisy and output.margin_of_all is None for output in outputs] or [False] * len(margins)
        marks = [output.mark for output in outputs] or [None] * len(margins)
        noise_only = self.noise_only or (False,) * len(margins)
        return tuple(map(Column, self._table.names, self._table.types, margins, varies, marks, noise_only))

    @property
    def _confidence(self) -> str:
        return "95 %" if self._answer is None else str(self._answer.release.confidence)

    @property
    def cautions(self) -> tuple[str, ...]:
        """Warnings about the last answer, one sentence each. They follow from query and policy alone."""
        return () if self._answer is None else self._answer.release.cautions

    # --- execution ---

    def execute(self, operation: str, parameters: Parameters | None = None) -> Self:
        """Run one statement. Only a query is charged, and a charge is never returned, whatever happens after."""
        self._require_open()
        self._table = self._answer = None
        self._next = 0
        bound = bind(operation, parameters)
        cancellation = self._running = Cancellation()
        try:
            result = self._run(
                bound, lambda session: session.execute(bound.text, bound.values, cancellation), cancellation
            )
        finally:
            self._running = None
        if isinstance(result, Answer):
            self._answer, self._table = result, result.table
        else:
            self._table = result
        return self

    def executemany(self, operation: str, seq_of_parameters: Sequence[Parameters]) -> None:  # noqa: ARG002
        """Not supported: it is for statements without rows, and dpsql's take no parameters."""
        self._require_open()
        raise NotSupportedError("executemany is not supported", hint="Call execute for each set of parameters.")

    def explain(self, operation: str, parameters: Parameters | None = None) -> str:
        """Price, noise, margins, keys and derivation of a query. Free; the rows of the last query are kept."""
        self._require_open()
        bound = bind(operation, parameters)
        cancellation = self._running = Cancellation()
        try:
            lines = self._run(
                bound, lambda session: session.explain(bound.text, bound.values, cancellation), cancellation
            )
        finally:
            self._running = None
        return "\n".join(lines)

    def cancel(self) -> None:
        """Cancel the statement that another thread runs on this cursor, if there is one. Its charge stands."""
        running = self._running
        if running is not None:
            running.cancel()

    # --- fetching ---

    def fetchone(self) -> Row | None:
        """The next row, or None if there is none."""
        rows = self._take(1)
        return rows[0] if rows else None

    def fetchmany(self, size: int | None = None) -> list[Row]:
        """The next `size` rows, by default `arraysize`; fewer if fewer are left."""
        return self._take(self.arraysize if size is None else size)

    def fetchall(self) -> list[Row]:
        """All remaining rows."""
        return self._take(None)

    def to_pandas(self, *, margins: bool = False) -> Any:
        """All remaining rows, as a pandas.DataFrame. Its types depend on the query only, not on the rows.

        With `margins`, a column NAME_margin follows each noisy one: infinite where a number is marked as noise.
        `attrs` holds the cautions, and under "noise_only" the columns whose margins cover the noise only.
        """
        pandas = frames.installed("pandas")  # before the rows are fetched, which would be lost if it is missing
        frame = frames.to_pandas(pandas, *self._taken(margins))
        frame.attrs.update(self._metadata())
        return frame

    def to_arrow(self, *, margins: bool = False) -> Any:
        """All remaining rows, as a pyarrow.Table; `margins` and metadata as in `to_pandas`."""
        arrow = frames.installed("pyarrow")
        table = frames.to_arrow(arrow, *self._taken(margins))
        return table.replace_schema_metadata({name: json.dumps(value) for name, value in self._metadata().items()})

    def _metadata(self) -> dict[str, list[str]]:
        """The metadata of a data frame."""
        limited = [column.name for column in self.columns or () if column.noise_only]
        return {"cautions": list(self.cautions), "noise_only": limited}

    def _taken(self, margins: bool) -> tuple[Sequence[Column], Sequence[Sequence[Cell]]]:
        start, columns = self._next, self.columns or ()
        rows = self._take(None)
        return frames.with_margins(columns, rows, self.row_margins[start:]) if margins else (columns, rows)

    def _repr_html_(self) -> str | None:
        """The rows with margins, as HTML for notebooks; they can still be fetched."""
        if self._table is None or self.columns is None:
            return None
        price = "" if self.cost is None else f"price: {self.cost}; paid: {self.cost.charged}"
        return notebook.html_table(
            self.columns, self._table.rows, self.row_margins, price, self.cautions, self._confidence
        )

    def __iter__(self) -> Iterator[Row]:
        return self

    def __next__(self) -> Row:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row

    # --- the rest of PEP 249 ---

    def setinputsizes(self, sizes: Sequence[object]) -> None:  # noqa: ARG002
        """Do nothing, as PEP 249 allows."""
        self._require_open()

    def setoutputsize(self, size: int, column: int | None = None) -> None:  # noqa: ARG002
        """Do nothing, as PEP 249 allows."""
        self._require_open()

    def close(self) -> None:
        """Drop the rows. Idempotent."""
        self._closed = True
        self._table = self._answer = None

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise InterfaceError("the cursor is closed")
        self.connection._require_open()

    def _run(self, bound: Bound, task: Callable[[Session], Result], cancellation: Cancellation) -> Result:
        """Run a task; positions in errors refer to the caller's text."""
        try:
            return self.connection._run(task, cancellation)
        except Error as error:
            if error.position is not None:
                error.position = bound.position_in_original(error.position)
            raise

    def _take(self, count: int | None) -> list[Row]:
        self._require_open()
        if self._table is None:
            raise ProgrammingError("there are no rows to fetch", hint="Execute a query first.")
        if count is not None and count < 0:
            raise ProgrammingError("the number of rows to fetch must not be negative")
        rows = self._table.rows[self._next : None if count is None else self._next + count]
        self._next += len(rows)
        if any(type_.kind is Kind.ARRAY for type_ in self._table.types):
            return [tuple(list(cell) if isinstance(cell, tuple) else cell for cell in row) for row in rows]
        return rows


# --- types ---


class TypeObject:
    """Equal to the type code of every column of its kind."""

    def __init__(self, *kinds: Kind) -> None:
        self._codes = frozenset(kind.value for kind in kinds)

    def __eq__(self, other: object) -> bool:
        return self is other or other in self._codes

    __hash__ = None  # type: ignore[assignment]  # equal to codes that differ from each other


STRING = TypeObject(Kind.TEXT, Kind.UNKNOWN)
BINARY = TypeObject()
NUMBER = TypeObject(Kind.INTEGER, Kind.DECIMAL, Kind.DOUBLE, Kind.BOOLEAN)
DATETIME = TypeObject(Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ, Kind.INTERVAL)
ROWID = TypeObject()


def _described(name: str, type_: Type) -> Description:
    is_decimal = type_.kind is Kind.DECIMAL
    precision, scale = (type_.precision, type_.scale) if is_decimal else (None, None)
    return name, type_.kind.value, None, None, precision, scale, None


Date = date
Time = time
Timestamp = datetime
Binary = bytes


def DateFromTicks(ticks: float) -> date:  # noqa: N802 - the name is fixed by PEP 249
    return date.fromtimestamp(ticks)


def TimeFromTicks(ticks: float) -> time:  # noqa: N802 - the name is fixed by PEP 249
    return datetime.fromtimestamp(ticks).time()


def TimestampFromTicks(ticks: float) -> datetime:  # noqa: N802 - the name is fixed by PEP 249
    return datetime.fromtimestamp(ticks)
