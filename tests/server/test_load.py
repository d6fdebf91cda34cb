"""Whoever has more clients than another process knows it."""

from __future__ import annotations

from pathlib import Path

from dpsql.server.workers.channel import ClientCounts, SingleProcess


def test_who_has_more_than_another_knows(tmp_path: Path) -> None:
    first, second, third = (ClientCounts(tmp_path / "client_counts", number, 3) for number in (1, 2, 3))
    assert not any(each.another_has_fewer() for each in (first, second, third))
    first.clients(2)
    second.clients(1)
    assert [each.another_has_fewer() for each in (first, second, third)] == [True, True, False]
    third.clients(2)
    assert [each.another_has_fewer() for each in (first, second, third)] == [True, False, True]


def test_one_that_is_started_again_has_none(tmp_path: Path) -> None:
    path = tmp_path / "client_counts"
    first, second = ClientCounts(path, 1, 2), ClientCounts(path, 2, 2)
    first.clients(1)
    second.clients(5)
    assert not first.another_has_fewer()
    ClientCounts(path, 2, 2)
    assert first.another_has_fewer()


def test_others_that_have_not_begun_have_none(tmp_path: Path) -> None:
    first = ClientCounts(tmp_path / "client_counts", 1, 8)
    assert not first.another_has_fewer()
    first.clients(1)
    assert first.another_has_fewer()


def test_numbers_of_more_processes_that_were_once_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "client_counts"
    for number in (1, 2, 3):
        ClientCounts(path, number, 3)
    first, second = ClientCounts(path, 1, 2), ClientCounts(path, 2, 2)
    first.clients(1)
    second.clients(1)
    assert not first.another_has_fewer()


def test_one_alone_gives_way_to_nobody() -> None:
    alone = SingleProcess()
    alone.clients(7)
    assert not alone.another_has_fewer()
