"""Whoever has more clients than another process knows it."""

from __future__ import annotations

from pathlib import Path

from dpsql.server.workers.channel import Alone, Crowding


def test_who_has_more_than_another_knows(tmp_path: Path) -> None:
    first, second, third = (Crowding(tmp_path / "crowding", number, 3) for number in (1, 2, 3))
    assert not any(each.is_above_others() for each in (first, second, third))
    first.clients(2)
    second.clients(1)
    assert [each.is_above_others() for each in (first, second, third)] == [True, True, False]
    third.clients(2)
    assert [each.is_above_others() for each in (first, second, third)] == [True, False, True]


def test_one_that_is_started_again_has_none(tmp_path: Path) -> None:
    path = tmp_path / "crowding"
    first, second = Crowding(path, 1, 2), Crowding(path, 2, 2)
    first.clients(1)
    second.clients(5)
    assert not first.is_above_others()
    Crowding(path, 2, 2)
    assert first.is_above_others()


def test_others_that_have_not_begun_have_none(tmp_path: Path) -> None:
    first = Crowding(tmp_path / "crowding", 1, 8)
    assert not first.is_above_others()
    first.clients(1)
    assert first.is_above_others()


def test_numbers_of_more_processes_that_were_once_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "crowding"
    for number in (1, 2, 3):
        Crowding(path, number, 3)
    first, second = Crowding(path, 1, 2), Crowding(path, 2, 2)
    first.clients(1)
    second.clients(1)
    assert not first.is_above_others()


def test_one_alone_gives_way_to_nobody() -> None:
    alone = Alone()
    alone.clients(7)
    assert not alone.is_above_others()
