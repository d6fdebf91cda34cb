"""The Python driver, as PEP 249 describes it, and what dpsql adds: explain, cost, margins, budget, cancel, data frames.

It reads the database with the rights of whoever calls it: `user` says whose account pays and authenticates nobody.
An analyst who must not see the data belongs behind a server.
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
threadsafety = 2  # threads may share connections, whose queries then run one after the other, but not cursors
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

    `user` says whose account pays. It is bookkeeping, not authentication: this process reads the database with
    its own rights. It may be left out if the policy has exactly one user.

    `new_ledger` is the owner's word that a ledger which the policy names, and which is missing, may be created:
    a new one knows nothing of what was spent before.

    `timezone` is the time zone in which dates and times are read and shown, as `SET TimeZone` has it.
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


# --- what things cost ---


@dataclass(frozen=True, slots=True)
class Amount:
    """A price or a budget as people read it. `grains` is the exact count that the ledger keeps."""

    epsilon: float
    delta: float
    rho: float | None  # what adds up under zcdp accounting; None under basic, where epsilon does
    pure: float | None  # under zcdp, the epsilon of what is pure, which adds up with others of the kind
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
    """The price of a query, and what this user was charged for it now: nothing if the answer was theirs already."""

    charged: Amount

    __str__ = Amount.__str__


@dataclass(frozen=True, slots=True)
class Budget:
    """What the user has spent, and can still spend before the own allowance or the dataset's total is used up."""

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

    A thread of its own runs the queries, so that the calling thread can be interrupted while one is under way.
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
        """Whose account pays."""
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
        """Whether no ledger was there when this was opened: nothing counts as spent, whatever was before."""
        return self._dataset.ledger.begun

    @property
    def has_adopted_units(self) -> bool:
        """Whether the ledger had charges, and learned only now, from the policy, whom it protects."""
        return self._dataset.ledger.adopted

    @property
    def catalog(self) -> Catalog:
        """The declared tables and columns: what can be asked about."""
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
        """Let go of the database and the ledger, after the queries that still run. May be called again."""
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
        """Run a task after those before it. An interrupt here (Ctrl-C) stops it there."""

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
    """Runs statements and hands out their rows."""

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

    # --- what the last statement was ---

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
        """What the last query cost, and what was charged for it; None after anything but a query."""
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
        """Per column, whether its margins are of the noise alone: limits may cut off part of its numbers.

        These margins are shown with an asterisk, and `cautions` says which limits. It follows from query and policy.
        """
        return None if self._answer is None else tuple(o.noise_only for o in self._answer.release.outputs)

    @property
    def row_margins(self) -> list[tuple[int | float | None, ...]]:
        """Per row and value, the 95 % margin of every noisy number that has one: ratios too, each from its own row.

        All rows of the answer, whether fetched or not. None where a value is exact or NULL, infinite where it is noisy
        and nobody can tell how far off it is.
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
        """What to know before the last answer is used, a sentence each. They follow from query and policy alone."""
        return () if self._answer is None else self._answer.release.cautions

    # --- running ---

    def execute(self, operation: str, parameters: Parameters | None = None) -> Self:
        """Run one statement. Only a query spends, and what it spends is never returned, whatever happens after."""
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
        """Not supported: it is for statements without rows, and those of dpsql take no parameters."""
        self._require_open()
        raise NotSupportedError("executemany is not supported", hint="Call execute for each set of parameters.")

    def explain(self, operation: str, parameters: Parameters | None = None) -> str:
        """Price, noise, margins, keys and derivation of a query. Free; the rows of the last query stay."""
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
        """Stop the statement that another thread runs on this cursor, if there is one. Its charge stands."""
        running = self._running
        if running is not None:
            running.cancel()

    # --- fetching ---

    def fetchone(self) -> Row | None:
        """The next row, or None when there is none left."""
        rows = self._take(1)
        return rows[0] if rows else None

    def fetchmany(self, size: int | None = None) -> list[Row]:
        """The next rows, `arraysize` of them unless told otherwise; fewer when fewer are left."""
        return self._take(self.arraysize if size is None else size)

    def fetchall(self) -> list[Row]:
        """All rows that are left."""
        return self._take(None)

    def to_pandas(self, *, margins: bool = False) -> Any:
        """All rows that are left, as a pandas.DataFrame. Its types are those of the query, whatever the rows hold.

        With `margins`, a column NAME_margin stands behind each noisy one: infinite where a number is marked as noise.
        `attrs` holds the cautions, and under "noise_only" the columns whose margins are of the noise alone.
        """
        pandas = frames.installed("pandas")  # before the rows are taken, or they would be lost without it
        frame = frames.to_pandas(pandas, *self._taken(margins))
        frame.attrs.update(self._metadata())
        return frame

    def to_arrow(self, *, margins: bool = False) -> Any:
        """All rows that are left, as a pyarrow.Table; with `margins`, and metadata, as `to_pandas` has them."""
        arrow = frames.installed("pyarrow")
        table = frames.to_arrow(arrow, *self._taken(margins))
        return table.replace_schema_metadata({name: json.dumps(value) for name, value in self._metadata().items()})

    def _metadata(self) -> dict[str, list[str]]:
        """What a data frame says of its numbers beside them."""
        limited = [column.name for column in self.columns or () if column.noise_only]
        return {"cautions": list(self.cautions), "noise_only": limited}

    def _taken(self, margins: bool) -> tuple[Sequence[Column], Sequence[Sequence[Cell]]]:
        start, columns = self._next, self.columns or ()
        rows = self._take(None)
        return frames.with_margins(columns, rows, self.row_margins[start:]) if margins else (columns, rows)

    def _repr_html_(self) -> str | None:
        """The rows as a notebook shows them, with their margins; they can still be fetched."""
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
        """Let go of the rows. May be called again."""
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
        """Run a task; positions in errors are those of the text that the caller wrote."""
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
    """Equal to the type code of every column of its sort."""

    def __init__(self, *kinds: Kind) -> None:
        self._codes = frozenset(kind.value for kind in kinds)

    def __eq__(self, other: object) -> bool:
        return self is other or other in self._codes

    __hash__ = None  # type: ignore[assignment]  # it equals codes that differ from each other


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
