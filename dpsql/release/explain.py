"""EXPLAIN: what a query will cost, how much noise it gets and why it is private. Read from the Release; free."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import assert_never

from dpsql.plan.scalars import Array, Call, Op, Ref, Scalar
from dpsql.plan.text import scalar_text
from dpsql.privacy.accounting import Accountant, Price
from dpsql.privacy.estimators.assembly import EPOCH, EPOCH_DAY
from dpsql.privacy.estimators.basis import Shape
from dpsql.privacy.mechanisms.bound_search import BoundSearch, Search
from dpsql.privacy.mechanisms.grouping_sets import GroupingSets
from dpsql.privacy.mechanisms.mode import Mode, numbered_subject
from dpsql.privacy.mechanisms.partition_selection import PartitionSelection
from dpsql.privacy.mechanisms.quantiles import Quantiles, levels
from dpsql.privacy.mechanisms.running_totals import SCALE, Chains, RunningTotals, tree
from dpsql.privacy.mechanisms.sums import NoisySums, Sums
from dpsql.privacy.mechanisms.top_keys import TopKeys
from dpsql.privacy.noise_laws import Noise, clip_penalty, standard_deviation
from dpsql.privacy.rules.aggregates import Statistic, StatisticKind, centres, clips
from dpsql.privacy.stability import Derivation
from dpsql.release import Measurement, Release

_COUNTED = {Op.DAYS_BETWEEN: "days", Op.SECONDS_BETWEEN: "seconds"}


def explain(release: Release, accountant: Accountant, left: str, warnings: Sequence[str] = ()) -> list[str]:
    """The lines of EXPLAIN."""
    lines = [f"Price: {price_text(release.price, accountant) if release.price.loss else 'free'}"]
    lines.append(f"Left: {left}")
    lines += [f"Warning: {warning}" for warning in warnings]
    for number, (index, measurement) in enumerate(paid_for(release), 1):
        lines += _measurement(number, measurement, accountant, _clip_texts(release, index), str(release.confidence))
    # Until its clip is chosen, a sum has the noise of the declared one at most.
    less = " or less" if set(release.searches) - release.chosen else ""
    shown = [
        f'"{o.name}" ±{number_text(o.margin)}{o.mark_of_margin}'
        for o in release.outputs
        if o.margin is not None and not o.is_marked
    ]
    if shown:
        lines.append(f"Margins ({release.confidence}): {', '.join(shown)}{less}")
    means = [
        f'"{o.name}" ±{_whole_or_short(o.at_thousand)}{o.mark_of_margin}'
        for o in release.outputs
        if o.at_thousand is not None
    ]
    if means:
        lines.append(
            f"Averages ({release.confidence}): {', '.join(means)} or less at n = 1,000 rows;"
            " at other n in proportion to 1 / n"
        )
    near = [
        f'"{o.name}"{o.mark_of_margin}' for o in release.outputs if o.margin is not None and o.margin_at is not None
    ]
    if near:
        lines.append(
            f"Margins by row: {', '.join(near)}: wider for keys near the threshold, which noise may have lifted"
        )
    own = [
        f'"{o.name}"{o.mark_of_margin}'
        for o in release.outputs
        if o.margin_at is not None and o.at_thousand is None and o.margin is None
    ]
    if own:
        lines.append(f"Margins by row: {', '.join(own)}: made of noisy numbers; each answer has its own")
    marked = [f'"{o.name}"' + (f" ({o.mark})" if o.mark else "") for o in release.outputs if o.is_marked]
    if marked:
        lines.append(f"Without a margin: {', '.join(marked)}: marked (noise) in the answer")
    lines += [f"Caution: {caution}" for caution in release.cautions]
    lines += [f"Note: {note}" for note in (*release.notes, *_unowned(release))]
    if any(measurement.derived for measurement in release.measurements):
        lines.append("Note: SET dpsql.fresh = on buys a new answer")
    return lines


def _unowned(release: Release) -> dict[str, None]:
    """Which rows of the tables that are read belong to nobody, each said once."""
    found: dict[str, None] = {}

    def look(derivation: Derivation) -> None:
        if derivation.unowned is not None:
            found[derivation.unowned] = None
        for premise in derivation.premises:
            look(premise)

    for measurement in release.measurements:
        look(measurement.derivation)
    return found


def paid_for(release: Release) -> list[tuple[int, Measurement]]:
    """The measurements with their places, but for those that only look up a clip that was found before."""
    return [
        (index, measurement)
        for index, measurement in enumerate(release.measurements)
        if measurement.price.loss or not measurement.is_search
    ]


def _clip_texts(release: Release, index: int) -> dict[int, str]:
    """For each sum with a loose clip, what will be or was chosen."""
    found = {}
    before = (release.unsettled or release).measurements[index]
    for place, search in before.clips:
        if release.measurements[search].mechanism == BoundSearch("centre"):
            continue  # stands in the name of the sum
        declared, statistic = before.statistics[place], release.measurements[index].statistics[place]
        most = number_text(Fraction(declared.clip, declared.factor) * declared.step)
        if search not in release.chosen:
            found[place] = f"    of one unit, {most} counts at most; a lower clip is chosen before, and kept"
            continue
        chosen = number_text(Fraction(statistic.clip, statistic.factor) * statistic.step)
        was = "is chosen with it" if release.measurements[search].price.loss else "was chosen before"
        found[place] = f"    of one unit, {chosen} counts at most, where {most} is declared: the clip {was}"
    return found


def _measurement(
    number: int, measurement: Measurement, accountant: Accountant, chosen: dict[int, str], confidence: str
) -> list[str]:
    paid = "made of earlier answers" if measurement.derived else price_text(measurement.price, accountant)
    lines = [f"Release {number}: {paid}"]
    for index, (statistic, noise) in enumerate(zip(measurement.statistics, measurement.noises, strict=True)):
        if not measurement.is_sum(index):
            lines += _choice(measurement, index, confidence)
            continue
        deviation = standard_deviation(noise) / statistic.factor * float(statistic.value_of_one)
        if measurement.is_rooted(index) and noise.law == "gaussian":
            deviation /= SCALE
        if measurement.told is not None:
            shown = f"margin ±{number_text(measurement.margin(index))} ({confidence})"
            lines.append(f"  {statistic_text(statistic)}: of earlier answers, {shown}")
            continue
        lines.append(
            f"  {statistic_text(statistic)}: {noise.law} noise, deviation {_short(deviation)},"
            f" margin ±{number_text(measurement.margin(index))} ({confidence})"
        )
        lines.append(_sensitivity_text(measurement, index, accountant))
        lines += _mechanism_texts(measurement, index)
        if index in chosen:
            lines.append(chosen[index])
        if statistic.value is not None and statistic.kind is not StatisticKind.DISTINCT:
            low, high = statistic.bounds.low, statistic.bounds.high
            assert low is not None and high is not None
            lines.append(
                f"    clamped to [{number_text(low)}, {number_text(high)}] in steps of {number_text(statistic.step)}"
            )
    lines.append(f"  Keys: {_keys_text(measurement)}")
    lines += _prepared_texts(measurement)
    lines.append("  Derivation:")
    lines += _derivation(measurement.derivation, 2)
    return lines


def _sensitivity_text(measurement: Measurement, index: int, accountant: Accountant) -> str:
    """How far one unit moves a sum, over all its cells, and what part of the price pays for its noise."""
    statistic, noise = measurement.statistics[index], measurement.noises[index]
    sensitivity, unit = statistic.sensitivity, float(statistic.value_of_one) / statistic.factor
    cells = "any number of cells" if sensitivity.l0 is None else _plural(sensitivity.l0, "cell")
    l1, l2 = (_short(norm * unit) for norm in (float(sensitivity.l1), math.sqrt(sensitivity.l2_squared)))
    found = f"    sensitivity: one unit moves {cells} (l0), {f'l1 {l1}' if noise.law == 'laplace' else f'l2 {l2}'}"
    if l1 == l2:
        found = f"    sensitivity: one unit moves {cells} (l0), l1 and l2 {l1}"
    group = measurement.paid_with(index)
    shared = f", with {_plural(len(group) - 1, 'other sum')}" if len(group) > 1 else ""
    share = _share_of_price(measurement, index, accountant)
    return f"{found}; share of the price {_short(100 * share)} %{shared}"


def _share_of_price(measurement: Measurement, index: int, accountant: Accountant) -> float:
    """Of all sums that noise of one law is added to: what a sum costs alone is in proportion to the square of, or to,
    its sensitivity by its noise."""

    def cost(place: int) -> float:
        statistic, noise = measurement.statistics[place], measurement.noises[place]
        if noise.law == "gaussian":
            return float(statistic.sensitivity.l2_squared / noise.scale) / 2
        return float(statistic.sensitivity.l1 / noise.scale)

    is_rho = accountant.policy.accounting == "zcdp" and measurement.noises[index].law == "gaussian"
    pure = measurement.price.pure_value
    whole = float(measurement.price.loss_value) if is_rho or not pure else float(pure)
    return min(cost(index) / whole, 1.0) if whole else 0.0


def _prepared_texts(measurement: Measurement) -> list[str]:
    """Which way the engine goes, where it reads prepared copies. The answer is the same on both."""
    ways = {branch.way: None for branch in measurement.branches if branch.way}
    return [f"  Prepared copy: {way}" for way in ways]


def _mechanism_texts(measurement: Measurement, index: int) -> list[str]:
    """What the noise that was said before is on, where that is not the sums of the cells themselves."""
    mechanism = measurement.mechanism
    match mechanism:
        case RunningTotals(chains=chains):
            return [_running_text(measurement, chains, index)] if mechanism.is_rooted(index) else []
        case GroupingSets(sets=sets):
            return [_sets_text(measurement, sets, index)]
        case Sums() | PartitionSelection() | TopKeys() | BoundSearch():
            return []
        case _:
            assert_never(mechanism)


def _running_text(measurement: Measurement, chains: Chains, index: int) -> str:
    """The noise is on the root of the running totals."""
    margins = measurement.running_steps(index)
    step = measurement.statistics[index].value_of_one
    names = ", ".join(key_text(measurement.keys[along.key].value) for along in chains.along)
    on = "the root of its running totals"
    if measurement.noises[index].law == "laplace":
        on = f"sums of {' and '.join(map(str, tree(chains.length).lengths))} cells, for running totals"
    return (
        f"    on {on} by {names}, whose margins are ±{number_text(margins[0] * step)} to"
        f" ±{number_text(margins[-1] * step)}"
    )


def _sets_text(measurement: Measurement, sets: Sequence[tuple[int, ...]], index: int) -> str:
    """The noise is that of the whole price; the sets share it, and then agree."""
    unit = measurement.statistics[index].value_of_one
    shown = [
        f"±{number_text(measurement.steps_in_set(index, kept) * unit)} by {names}"
        for kept in sets
        if (names := ", ".join(key_text(measurement.keys[i].value) for i in kept) or "no key")
    ]
    return f"    shared by {len(shown)} grouping sets that agree with each other: {'; '.join(shown)}"


def _choice(measurement: Measurement, index: int, confidence: str) -> list[str]:
    """A value that is chosen by the exponential mechanism, and among what."""
    group = measurement.paid_with(index)
    noises = [measurement.noises[i] for i in group]
    statistic, measured = measurement.statistics[index], measurement.measured(group)
    chosen = f"  {statistic_text(statistic)}: exponential mechanism"
    low, high = statistic.bounds.low, statistic.bounds.high
    assert low is not None and high is not None
    match measured:
        case Search(of=of):
            if of == "centre":
                return [f"{chosen}, one of {centres(statistic):,} from {number_text(low)} to {number_text(high)}"]
            found = [number_text(clip * statistic.step) for clip in clips(statistic)]
            worth = _plural(2 * clip_penalty(noises[0]), "unit")
            return [
                f"{chosen}, one of {len(found)} from {found[0]} to {found[-1]};"
                f" half the clip is worth {worth} beyond it",
            ]
        case Mode():
            rows = _plural(measured.margin(noises[0], measurement.confidence), "row")
            return [
                f"{chosen}, or one of {rows} less ({confidence})",
                f"    chosen among {statistic.candidates:,} values",
            ]
        case Quantiles():
            off = measured.margin(group.index(index), noises, measurement.confidence)
            # The extremes are aimed at as far inside as the choice may be off.
            is_extreme = statistic.rank in (0, 1)
            away = f"{_plural(2 * off, 'row')} of that end" if is_extreme else f"{_plural(off, 'row')} of its rank"
            lines = [
                f"{chosen}, within {away} ({confidence})",
                f"    chosen among {statistic.candidates:,} values, clamped to [{number_text(low)},"
                f" {number_text(high)}] in steps of {number_text(statistic.step)}",
            ]
            return [*lines, f"    {in_turn_text(len(group))}"] if len(group) > 1 and index == group[0] else lines
        case NoisySums():
            raise AssertionError("a sum is not chosen")
        case _:
            assert_never(measured)


def in_turn_text(quantiles: int) -> str:
    paid = levels(range(quantiles))
    return f"{quantiles} quantiles are chosen one within the other, and so in order, for the price of {paid} choices"


def statistic_text(statistic: Statistic) -> str:
    what = "*" if statistic.value is None else _shape_text(_value_text(statistic.value), statistic)
    name = {
        StatisticKind.ROWS: "count of rows" if statistic.value is None else f"sum of {what}",
        StatisticKind.UNITS: "count of units",
        StatisticKind.WEIGHTS: "weight of units",
        StatisticKind.DISTINCT: f"count of different {what}",
        StatisticKind.DISTINCT_SUM: f"sum of different {what}",
        StatisticKind.CLIP: f"clip of the {'count of rows' if statistic.value is None else f'sum of {what}'}",
        StatisticKind.CENTRE: f"centre of {what}",
        StatisticKind.RANKED: f"{_rank_text(statistic.rank)}{what}",
        StatisticKind.COMMONEST: f"most common {what}",
    }[statistic.kind]
    return name if statistic.where is None else f"{name} where {scalar_text(statistic.where)}"


def _shape_text(value: str, statistic: Statistic) -> str:
    """With t from 0 at the lower bound to 1 at the upper one."""
    low, high = statistic.low * statistic.step, statistic.high * statistic.step
    match statistic.shape:
        case Shape.ITSELF:
            return value
        case Shape.CENTRED:
            return f"{value} - {number_text((low + high) / 2)}"
        case Shape.RESIDUAL:
            return f"{value} - {number_text(statistic.centre * statistic.step)}"
        case Shape.ABOVE:
            return f"{value} - {number_text(low)}" if low else value
        case Shape.BELOW:
            return f"{number_text(high)} - {value}"
        case Shape.TWICE_BELOW:
            return f"(1 - t)² of {value}"
        case Shape.BETWEEN:
            return f"2t(1 - t) of {value}"
        case Shape.TWICE_ABOVE:
            return f"t² of {value}"


def _value_text(value: Scalar) -> str:
    """A moment is counted from the start of 1970, whose dates nobody writes as such."""
    if (subject := numbered_subject(value)) is not None:
        return scalar_text(subject)
    if isinstance(value, Array):
        return f"({', '.join(map(key_text, value.items))})"
    if isinstance(value, Call) and value.op in _COUNTED and value.args[1] in (EPOCH_DAY, EPOCH):
        return f"{scalar_text(value.args[0])} in {_COUNTED[value.op]} since 1970"
    return scalar_text(value)


def _rank_text(rank: Fraction | None) -> str:
    if rank is None:
        return ""
    ends = {Fraction(0): "smallest ", Fraction(1): "largest ", Fraction(1, 2): "median of "}
    return ends.get(rank, f"quantile {number_text(rank)} of ")


def _keys_text(measurement: Measurement) -> str:
    if not measurement.keys:
        return "none, one row"
    names = ", ".join(key_text(key.value) for key in measurement.keys)
    mechanism, cells = measurement.mechanism, len(measurement.cells or ())
    match mechanism:
        case PartitionSelection(by=by):
            return _selection_text(measurement, mechanism.threshold, measurement.statistics[by], measurement.noises[by])
        case TopKeys(keys=keys):
            fewer = _plural(mechanism.margin(cells), "unit")
            chosen = "the one with most units is" if keys == 1 else f"the {keys:,} with most units are"
            return (
                f"{names}: {cells:,} declared; {chosen} chosen first (exponential mechanism, at most {fewer} below any"
                " that is left out, 95 %), and counted"
            )
        case Sums() | RunningTotals() | GroupingSets() | BoundSearch():
            return f"{names}: {cells:,} declared, all returned"
        case _:
            assert_never(mechanism)


def _selection_text(measurement: Measurement, threshold: int, counter: Statistic, noise: Noise) -> str:
    keys = measurement.bound.groups
    if counter.kind is StatisticKind.UNITS:
        return (
            f"unknown; returned where the noisy count of units is at least {threshold:,}"
            f" (each unit counts in at most {_plural(keys, 'key')})"
        )
    root = "sqrt(k)" if noise.law == "gaussian" else "k"
    least = _short(threshold / counter.factor)
    few, many = measurement.units_to_pass()
    return (
        f"unknown; returned where the noisy weight of units is at least {least}; a unit with k keys"
        f" (at most {keys:,} count) weighs 1 / {root} in each: about {few:,} units with one key,"
        f" or {many:,} with {keys:,}"
    )


def key_text(value: Scalar) -> str:
    return value.field.name if isinstance(value, Ref) else scalar_text(value)


def _derivation(derivation: Derivation, depth: int) -> list[str]:
    stability = derivation.conclusion
    note = f" {derivation.note}" if derivation.note else ""
    lines = [f"{'  ' * depth}{derivation.rule}{note}: at most {_plural(stability.rows, 'row')} per unit"]
    for premise in derivation.premises:
        lines += _derivation(premise, depth + 1)
    return lines


def price_text(price: Price, accountant: Accountant) -> str:
    """What adds up with all other prices; and of what is pure, the epsilon that adds up with others of the kind."""
    as_pure = f"epsilon {_short(float(price.pure_value))} as pure" if price.pure_value else None
    if price.loss == 0 and (price.delta == 0 or as_pure):
        return f"{as_pure}, and nothing else" if as_pure else "nothing"
    epsilon = f"epsilon {_short(float(accountant.epsilon_of(price.loss)))}"
    if accountant.policy.accounting == "zcdp":
        epsilon += f" (rho {_short(float(price.loss_value))})"
    delta = [f"delta {_short(float(price.delta_value))}"] if price.delta else []
    return ", ".join([epsilon, *delta, *([f"or {as_pure}"] if as_pure else [])])


def number_text(value: Fraction) -> str:
    """A rational number as people write it: exact if it has few digits."""
    if value.denominator == 1:
        return f"{value.numerator:,}"
    return _short(float(value))


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _whole_or_short(value: float) -> str:
    return f"{math.ceil(value):,}" if value >= 1_000 else _short(value)


def _short(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return "0"
    return f"{value:.4g}" if abs(value) < 1e6 else f"{value:,.0f}"
