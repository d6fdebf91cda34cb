"""A pure answer of a zcdp ledger has Laplace noise of the stated epsilon, and no other."""

from __future__ import annotations

from contextlib import closing
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from dpsql.noise.samplers import SystemSampler
from dpsql.release import QuerySettings
from tests.statistical.laws import DiscreteGaussian, DiscreteLaplace, fits
from tests.statistical.test_audit import OTHERS, Audit, each_answer_by_itself, groups_database, opened

__all__ = ["each_answer_by_itself", "groups_database"]


@pytest.mark.parametrize("epsilon", [Fraction(1, 2), Fraction(1, 20)])
def test_the_noise_of_a_pure_answer(tmp_path: Path, groups_database: Path, epsilon: Fraction) -> None:
    with closing(opened(tmp_path, groups_database, "pure", SystemSampler()).dataset) as engine:
        wanted = QuerySettings(epsilon=epsilon, pure=True)
        trials = Audit(engine, "pure").trials("SELECT g, COUNT(*) FROM {table} GROUP BY g", "without_unit", wanted)
    draws = trials.astype(np.int64) - OTHERS
    assert fits(draws, DiscreteLaplace(1 / epsilon))
    for wrong in (DiscreteLaplace(13 / epsilon / 10), DiscreteLaplace(10 / epsilon / 13)):
        assert not fits(draws, wrong)
    assert not fits(draws, DiscreteGaussian(2 / epsilon**2))
