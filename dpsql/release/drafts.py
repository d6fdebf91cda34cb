"""Measurements before their price is known, and what the parts of one compilation share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

from dpsql.lowering.bounding import Branch
from dpsql.lowering.dialect import Dialect
from dpsql.lowering.fast_paths import Key
from dpsql.plan.nodes import Plan
from dpsql.plan.scalars import Field
from dpsql.policy.model import Catalog
from dpsql.privacy.accounting import Accountant
from dpsql.privacy.allocation import Degree
from dpsql.privacy.derive import derive
from dpsql.privacy.estimators.assembly import Linear
from dpsql.privacy.mechanisms.bound_search import BoundSearch
from dpsql.privacy.mechanisms.running_totals import RunningTotals
from dpsql.privacy.mechanisms.sums import Sums
from dpsql.privacy.mechanisms.union import Unpriced
from dpsql.privacy.noise_laws import Law
from dpsql.privacy.rules.aggregates import Cells, Statistic
from dpsql.privacy.stability import Derivation
from dpsql.release.identity import Asked, Question
from dpsql.release.model import BoundMode, QuerySettings
from dpsql.types import Type, Value

Norm = Literal["l1", "l2"]


@dataclass(frozen=True, slots=True)
class Draft:
    """A measurement before the price is shared out."""

    keys: tuple[Key, ...]
    cells: tuple[tuple[Value, ...], ...] | None
    bound: Cells
    statistics: tuple[Statistic, ...]
    groups: tuple[tuple[int, ...], ...]
    weights: tuple[Fraction, ...]  # of each group: how much its variance counts
    counts: tuple[Linear, ...]
    mechanism: Unpriced
    branches: tuple[Branch, ...]
    stages: tuple[int, ...]
    derivation: Derivation
    asked: Asked
    question: Question | None = None
    clips: tuple[tuple[int, int], ...] = ()
    # Groups that share anew what they have together, once clips are chosen, and how much their variances count then.
    anew: tuple[Mapping[int, Fraction], ...] = ()

    @property
    def is_search(self) -> bool:
        return isinstance(self.mechanism, BoundSearch)


@dataclass(slots=True)
class Compilation:
    """What was given, and what has been found so far."""

    catalog: Catalog
    accountant: Accountant
    settings: QuerySettings
    dialect: Dialect
    clips: BoundMode
    # What was chosen by the measurements that search; and, where the same was compiled before, where each draft stood.
    chosen: Mapping[int, int] = field(default_factory=dict)
    standing: Iterator[int] | None = None
    ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1_000_000))
    drafts: list[Draft] = field(default_factory=list)
    placed: list[int] = field(default_factory=list)  # where each draft stands, in the order in which they were made
    coarser: int = 0  # `Stability.coarser`
    notes: dict[str, None] = field(default_factory=dict)  # in the order in which they were made
    cautions: dict[str, None] = field(default_factory=dict)
    limits: dict[str, None] = field(default_factory=dict)  # what may be cut off

    @property
    def law(self) -> Law:
        is_basic = self.accountant.policy.accounting == "basic"
        return "laplace" if is_basic or self.settings.pure else "gaussian"

    @property
    def counts_pure(self) -> bool:
        """Whether parts of the price are epsilons of pure answers, where rho is what adds up."""
        return self.settings.pure and self.accountant.policy.accounting == "zcdp"

    @property
    def norm(self) -> Norm:
        return "l1" if self.law == "laplace" else "l2"

    @property
    def degree(self) -> Degree:
        return 3 if self.law == "laplace" else 2

    def derived(self, relation: Plan) -> Derivation:
        """The proof of how much of a private relation is one unit's."""
        found = derive(relation, self.catalog.max_cells)
        return replace(found, conclusion=replace(found.conclusion, coarser=self.coarser)) if self.coarser else found

    def new_field(self, name: str, type_: Type) -> Field:
        return Field(next(self.ids), name, type_)

    def note(self, text: str) -> None:
        """For EXPLAIN alone."""
        self.notes[text] = None

    def caution(self, sentence: str) -> None:
        """For whoever reads the answer, wherever it is shown. It must follow from text, policy and schema alone."""
        self.cautions[sentence] = None

    def add(self, draft: Draft) -> tuple[int, bool]:
        """Where the draft stands among the others, and whether it is new there: the same is measured once."""
        if self.standing is not None:
            index = next(self.standing)
        else:
            index = next((i for i, other in enumerate(self.drafts) if same(draft, other)), len(self.drafts))
        self.placed.append(index)
        if index < len(self.drafts):
            return index, False
        self.drafts.append(draft)
        return index, True

    def again(self, chosen: Mapping[int, int]) -> Compilation:
        """A new compilation of the same query, in which this is chosen; its drafts stand where those of this one do."""
        return Compilation(
            self.catalog,
            self.accountant,
            self.settings,
            self.dialect,
            self.clips,
            chosen,
            iter(tuple(self.placed)),
            coarser=self.coarser,
        )


def same(left: Draft, right: Draft) -> bool:
    """Whether two measurements ask for the same."""
    return (
        left.asked == right.asked
        and left.cells == right.cells
        and _is_same(left.mechanism, right.mechanism)
        and left.clips == right.clips
    )


def _is_same(left: Unpriced, right: Unpriced) -> bool:
    """Running totals are asked of the same sums as sums of cells: the first that is asked decides about the noise."""
    return left == right or (isinstance(left, Sums | RunningTotals) and isinstance(right, Sums | RunningTotals))
