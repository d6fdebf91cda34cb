"""What answers are known by: all that decides how one is drawn, and nothing else.

A stored answer is found by a hash of its question: the private rows, what is added up of them and how it is bounded,
the noise and the price, and the identities of the earlier answers that it depends on. Generated SQL is no part of it,
nor is what analysts call things; of the policy it has the declarations that the question reads (`policy.fingerprint`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, assert_never

from dpsql.lowering.fast_paths import Key
from dpsql.plan.identity import PlanText, Read
from dpsql.plan.nodes import Plan
from dpsql.plan.prune import pruned
from dpsql.plan.scalars import Scalar
from dpsql.plan.visit import fields_read
from dpsql.policy.canonical import canonical, digest, leaf, rows_text, term
from dpsql.privacy.accounting import Price
from dpsql.privacy.estimators.basis import Shape
from dpsql.privacy.mechanisms.bound_search import BoundSearch
from dpsql.privacy.mechanisms.grouping_sets import GroupingSets
from dpsql.privacy.mechanisms.partition_selection import PartitionSelection
from dpsql.privacy.mechanisms.running_totals import RunningTotals
from dpsql.privacy.mechanisms.sums import Sums
from dpsql.privacy.mechanisms.top_keys import TopKeys
from dpsql.privacy.mechanisms.union import Mechanism
from dpsql.privacy.noise_laws import Noise
from dpsql.privacy.rules.aggregates import Cells, Statistic, StatisticKind
from dpsql.types import Value

# To be raised when equal texts begin to mean something else, as where an operation is computed in another way. All
# stored answers are bought anew then; a node or field that is new needs no other number.
FORMAT = 1

# What decides nothing: whether a closer bound is worth a search, which is asked for by itself.
_NO_PART = frozenset({"loose"})

Reads = tuple[Read, ...]
EarlierAnswers = Sequence[tuple[bytes, Sequence[str]]]  # of each stage its identity, and those of the answers it is of


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of private or public rows, and which declarations it reads."""

    identity: bytes
    reads: Reads = field(compare=False, repr=False)


def asked_of_rows(
    rows: Plan,
    keys: Sequence[Key],
    statistics: Sequence[Statistic],
    groups: Sequence[Sequence[int]],
    cells: Cells,
    *,
    most: int,
    norm: Literal["l1", "l2"],
    dialect: str,
    chosen: Cells | None,
    stages: Sequence[int],
) -> Asked:
    """A measurement before its noise and price.

    Claim: of two measurements with one identity, the engine is asked for the same exact table.
    Because: it is a function of what is written here (`lowering.bounding`). That a unit has one row by itself, and the
    table that holds all of its rows, only spare steps that would change nothing.
    Needs: `PlanText`. The norm is left out only where nothing is scaled down to it.
    """
    text = PlanText(stages)
    parts = [
        text.text(pruned(rows, _read(keys, statistics))),
        text.text(keys),
        term(*(text.dataclass_text(each, without=_NO_PART) for each in statistics)),
        canonical(groups),
        _cells_text(cells),
        canonical(most),
        canonical(norm if _is_scaled(statistics, groups, cells) else None),
        canonical(dialect),
        canonical(None) if chosen is None else _cells_text(chosen),
    ]
    return Asked(digest(term(*parts, text.end())), tuple(text.reads))


def asked_of_answers(rest: Plan, kind: str, measurements: Sequence[int]) -> Asked:
    """A stage: a value that is made of these noisy tables, and of public ones."""
    text = PlanText(measurements=measurements)
    plan = pruned(rest, {each.id for each in rest.fields})
    parts = [canonical(kind), text.text(plan), text.text(rest.fields)]
    return Asked(digest(term(*parts, text.end())), tuple(text.reads))


def identity_of_answer(
    asked: Asked,
    accounting: str,
    cells: Sequence[tuple[Value, ...]] | None,
    mechanism: Mechanism,
    noises: tuple[Noise, ...],
    price: Price,
) -> bytes:
    """A measurement whose cells, noise and price are known, but for the earlier answers that it depends on."""
    known = canonical(None) if cells is None else rows_text(cells)
    decides = _decides(mechanism, noises, price)
    parts = (canonical(FORMAT), canonical(accounting), canonical(asked.identity), known, canonical(decides))
    return digest(term(*parts))


def _decides(mechanism: Mechanism, noises: tuple[Noise, ...], price: Price) -> tuple[object, ...]:
    """How the answer is drawn from its exact table. The form of what is here must stay, and a new mechanism's differ.

    A search is known by what it asks alone, whatever was paid for it: what it found serves everybody. The remainder
    follows from keys and cells.
    """
    match mechanism:
        case BoundSearch():
            return (), None
        case Sums():
            return (noises, None, None, price, None, None), None
        case PartitionSelection(by=by, threshold=threshold):
            return (noises, by, threshold, price, None, None), None
        case TopKeys():
            return (noises, None, None, price, None, mechanism), None
        case GroupingSets():
            return (noises, None, None, price, mechanism, None), None
        case RunningTotals(chains=chains, chained=chained, rooted=rooted):
            return (noises, None, None, price, None, None), (chains, chained) if rooted else None
        case _:
            assert_never(mechanism)


def key_of_answer(identity: bytes, earlier: EarlierAnswers, clips: Sequence[tuple[int, str]]) -> bytes:
    """The key under which an answer is stored.

    A stage names the very answers it was computed from, so another answer to the inner question is another release; and
    so does a clip, in whose place the declared one stands in the question.
    """
    return digest(canonical((identity, earlier, clips)))


@dataclass(frozen=True, slots=True)
class Question:
    """What a measurement asks of its rows, so that the same sums are found by fewer keys, at any price."""

    rows: Plan
    keys: tuple[Key, ...]
    dialect: str
    stages: tuple[int, ...]

    def place(self, kept: tuple[int, ...], earlier: EarlierAnswers) -> bytes:
        """Under which key the records of all sums of these rows by some of the keys stand.

        Which combinations of keys are possible follows from rows and keys, for what public tables hold is part of them.
        """
        rows, end = self._rows(kept, ())
        return digest(term(leaf("derived"), canonical(FORMAT), rows, canonical(earlier), end))

    def name(self, kept: tuple[int, ...], statistic: Statistic) -> str:
        """One of these sums. How far a unit moves it, and to which price, is said beside its noise."""
        rows, end = self._rows(kept, (statistic,))
        return digest(term(rows, end)).hex()[:32]

    def _rows(self, kept: tuple[int, ...], statistics: tuple[Statistic, ...]) -> tuple[str, str]:
        text = PlanText(self.stages)
        keys = [self.keys[i] for i in kept]
        sums = (text.dataclass_text(each, without=_OF_PRICES) for each in statistics)
        rows = text.text(pruned(self.rows, _read(keys, statistics)))
        return term(canonical(self.dialect), rows, text.text(keys), *sums), text.end()


_OF_PRICES = _NO_PART | {"sensitivity"}


def _read(keys: Iterable[Key], statistics: Iterable[Statistic]) -> set[int]:
    values: list[Scalar] = [key.value for key in keys]
    for statistic in statistics:
        values += [part for part in (statistic.value, statistic.where) if part is not None]
    return {each.id for each in fields_read(values)}


def _cells_text(cells: Cells) -> str:
    return canonical((cells.keyed, cells.groups, cells.limited, cells.among, cells.selected))


def _is_scaled(statistics: Sequence[Statistic], groups: Sequence[Sequence[int]], cells: Cells) -> bool:
    """Whether a norm of several numbers may be what bounds a unit."""
    if any(len(group) > 1 for group in groups) or (cells.keyed and not (cells.limited and cells.groups == 1)):
        return True
    kinds = (StatisticKind.WEIGHTS, StatisticKind.CLIP)
    return any(each.kind in kinds or each.shape is Shape.RESIDUAL for each in statistics)
