"""Every release can be sent to another process, and is the same there."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from dpsql.answering.compiling.packing import Packing
from dpsql.answering.compiling.work import Ground, compile_source
from dpsql.compliance.cases import all_files, read
from dpsql.compliance.lab import Lab
from dpsql.errors import Error
from dpsql.release import BoundMode, QuerySettings, Release, Source
from dpsql.release.explain import explain
from dpsql.sql.clock import Clock

MOMENT = datetime(2024, 2, 29, 12, 30)
CLIPS: tuple[BoundMode, ...] = ("declared", "searched")


@pytest.mark.parametrize("path", all_files(), ids=lambda path: path.stem)
def test_releases_come_back_as_they_were(path: Path, lab: Lab) -> None:
    for case in read(path):
        dataset = lab.dataset(case.policy)
        engine = dataset.dataset
        ground = Ground(engine.catalog, engine.accountant, dataset.engine.dialect)
        packing = Packing(ground)
        for clips in CLIPS:
            source = Source(case.sql, tuple(case.params), QuerySettings(), clips, Clock(MOMENT))
            release, refusal = _release(ground, source)
            if release is None:
                again = packing.unpack(packing.pack(refusal))
                assert type(again) is type(refusal)
                assert (str(again), vars(again)) == (str(refusal), vars(refusal))
                continue
            found = packing.unpack(packing.pack(release))
            assert found == release
            assert explain(found, engine.accountant, "") == explain(release, engine.accountant, "")
            for one, other in zip(found.measurements, release.measurements, strict=True):
                if other.question is not None:
                    assert one.question is not None
                    every = tuple(range(len(other.keys)))
                    assert one.question.place(every, ()) == other.question.place(every, ())


def _release(ground: Ground, source: Source) -> tuple[Release | None, Error | None]:
    try:
        return compile_source(ground, source, (), 10_000_000).release, None
    except Error as refusal:
        return None, refusal
