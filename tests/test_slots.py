"""Places: as many as there are for all who share the file, and free again when their holder is gone."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from dpsql.answering.single_flight import SingleFlight
from dpsql.effort import Cancellation
from dpsql.errors import Cancelled
from dpsql.slots import Slots

_HOLDER = """
import sys
from pathlib import Path
from dpsql.slots import Slots
places = Slots(Path(sys.argv[1]))
print(places.take(b"seats", 2) is not None, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("is_shared", [False, True])
def test_there_are_no_more_than_there_are(tmp_path: Path, is_shared: bool) -> None:
    with closing(Slots(tmp_path / "places" if is_shared else None)) as slots:
        first, second = slots.take(b"seats", 2), slots.take(b"seats", 2)
        assert first is not None and second is not None and first != second
        assert slots.take(b"seats", 2) is None
        assert slots.take(b"tables", 1) is not None
        slots.give_back(first)
        assert slots.take(b"seats", 2) == first


def test_two_who_share_a_file_share_its_places(tmp_path: Path) -> None:
    with closing(Slots(tmp_path / "places")) as one, closing(Slots(tmp_path / "places")) as other:
        taken = one.take(b"seats", 2)
        assert other.take(b"seats", 2) not in (None, taken)
        assert one.take(b"seats", 2) is None and other.take(b"seats", 2) is None
        assert taken is not None
        one.give_back(taken)
        assert other.take(b"seats", 2) == taken


def test_a_process_that_is_killed_leaves_its_place(tmp_path: Path) -> None:
    with closing(Slots(tmp_path / "places")) as slots:
        holder = subprocess.Popen(
            [sys.executable, "-c", _HOLDER, str(tmp_path / "places")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert holder.stdout is not None and holder.stdout.readline() == b"True\n"
        assert slots.take(b"seats", 2) is not None and slots.take(b"seats", 2) is None
        holder.kill()
        holder.communicate()
        assert slots.take(b"seats", 2) is not None


def test_what_another_process_buys_is_waited_for(tmp_path: Path) -> None:
    one, other = (SingleFlight(Slots(tmp_path / "places")) for _ in range(2))
    cancellation = Cancellation()
    cancellation.cancel()
    with one.of([b"a", b"b"], None):
        with other.of([b"c"], None):
            pass
        with pytest.raises(Cancelled), other.of([b"c", b"b"], cancellation):
            pass
        with other.of([b"c"], None):  # nothing of what could not be had whole was kept
            pass
    with other.of([b"a", b"b", b"c"], cancellation):
        pass
