"""All mechanisms, as closed unions: a `match` that ends with `assert_never` stops type checking when one is missing.

A mechanism decides how the cells of a measurement are released. Within the cells, each group of statistics that are
paid for together is a group of sums, or a value that is chosen. CONTRIBUTING says how one is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from dpsql.privacy.mechanisms.bound_search import BoundSearch, Search
from dpsql.privacy.mechanisms.grouping_sets import GroupingSets
from dpsql.privacy.mechanisms.mode import Mode
from dpsql.privacy.mechanisms.partition_selection import PartitionSelection, UnpricedSelection
from dpsql.privacy.mechanisms.quantiles import Quantiles
from dpsql.privacy.mechanisms.running_totals import RunningTotals
from dpsql.privacy.mechanisms.sums import NoisySums, Sums
from dpsql.privacy.mechanisms.top_keys import TopKeys, UnpricedTopKeys
from dpsql.privacy.rules.aggregates import Statistic, StatisticKind

Mechanism = Sums | PartitionSelection | TopKeys | RunningTotals | GroupingSets | BoundSearch
# Before the price is shared out, which decides noise and threshold.
Unpriced = Sums | UnpricedSelection | UnpricedTopKeys | RunningTotals | GroupingSets | BoundSearch

# How a group of statistics is measured in each cell, for the price that they share.
Group = NoisySums | Quantiles | Mode | Search


def group_of(statistics: Sequence[Statistic]) -> Group:
    """How statistics of one group are measured; more than one are all sums, or all quantiles."""
    first = statistics[0]
    match first.kind:
        case (
            StatisticKind.ROWS
            | StatisticKind.UNITS
            | StatisticKind.WEIGHTS
            | StatisticKind.DISTINCT
            | StatisticKind.DISTINCT_SUM
        ):
            return NoisySums(tuple(statistics))
        case StatisticKind.RANKED:
            return Quantiles(tuple(statistics))
        case StatisticKind.COMMONEST:
            return Mode(first)
        case StatisticKind.CLIP:
            return Search("clip", first)
        case StatisticKind.CENTRE:
            return Search("centre", first)
        case _:
            assert_never(first.kind)
