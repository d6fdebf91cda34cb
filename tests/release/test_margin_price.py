"""The least price that keeps a margin: it does, and hardly less would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dpsql.release import least


@given(enough=st.integers(1, 2**62), most=st.integers(1, 2**62))
def test_the_least_price_suffices_and_is_within_a_millionth(enough: int, most: int) -> None:
    if enough > most:
        enough, most = most, enough
    found = least(lambda price: price >= enough, most)
    assert enough <= found <= most
    assert found <= enough + (enough >> 19) + 1
