"""The number of samplers and the replacement of dead ones; the samplers here only say how they are."""

from __future__ import annotations

import re

import pytest

from ascent import progress
from ascent.scale import server_pool
from ascent.scale.processes import Status
from ascent.scale.server_pool import ServerPool


class Toy:
    """A sampler that starts, answers and dies as it is told."""

    def __init__(self, number: int, placed: bool) -> None:
        self.number, self.closed = number, False
        self.now = Status("node" if placed else "")

    def answer(self) -> None:
        self.now = Status("node", url=f"http://{self.number}/v1")

    def die(self) -> None:
        self.now = Status("node", ended="it was killed")

    def status(self) -> Status:
        return self.now

    def close(self) -> None:
        self.closed = True


class World:
    def __init__(self) -> None:
        self.samplers: list[Toy] = []
        self.said: list[str] = []
        self.placed = True
        self.pool = ServerPool(
            "sampler", self.start, self.said.append, lambda: "each asks for 1 CPU"
        )

    def start(self, number: int) -> Toy:
        self.samplers.append(Toy(number, self.placed))
        return self.samplers[-1]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(server_pool, "PAUSE_SECONDS", 0.0)
    return World()


def test_only_those_that_answer_are_listed(world: World) -> None:
    assert world.pool.update(2).urls == ()
    world.samplers[1].answer()
    assert world.pool.update(2).urls == ("http://2/v1",)
    world.samplers[0].answer()
    assert world.pool.update(2).urls == ("http://1/v1", "http://2/v1")
    assert len(world.samplers) == 2


def test_a_dead_one_leaves_the_list_at_once_and_is_replaced(world: World) -> None:
    world.pool.update(2)
    for each in world.samplers:
        each.answer()
    world.pool.update(2)
    world.samplers[0].die()
    assert world.pool.update(2).urls == ("http://2/v1",)
    assert world.samplers[0].closed and [each.number for each in world.samplers] == [1, 2, 3]
    assert "sampler 1 on node failed: it was killed; another is started" in world.said
    world.samplers[2].answer()
    assert world.pool.update(2).urls == ("http://2/v1", "http://3/v1")


def test_the_number_changes(world: World) -> None:
    world.pool.update(1)
    world.samplers[0].answer()
    world.pool.update(3)
    assert len(world.samplers) == 3
    for each in world.samplers:
        each.answer()
    assert len(world.pool.update(3).urls) == 3
    assert world.pool.update(1).urls == ("http://1/v1",)
    assert [each.closed for each in world.samplers] == [False, True, True]


def test_samplers_that_never_start_end_it_with_the_reason(world: World) -> None:
    for _ in range(20):
        found = world.pool.update(1)
        world.samplers[-1].die()
    assert len(world.samplers) == 5
    assert (
        found.error
        == "5 samplers in a row did not start; the last: sampler 5 on node failed: it was killed"
    )


def test_those_that_worked_may_die_as_often_as_they_like(world: World) -> None:
    for _ in range(20):
        world.pool.update(1)
        world.samplers[-1].answer()
        assert world.pool.update(1).error == ""
        world.samplers[-1].die()
    assert len(world.samplers) == 20


def test_servers_without_a_node_are_said_with_what_is_asked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "FIRST_NOTE", 0.0)
    monkeypatch.setattr(progress, "SECOND_NOTE", 3600.0)
    world.placed = False
    for _ in range(3):
        world.pool.update(2)
    assert re.fullmatch(
        r"no room for sampler 1, 2 for 0 s, since [0-9:]+; each asks for 1 CPU", world.said[0]
    )
    for each in world.samplers:
        each.now = Status("node")
    world.pool.update(2)
    assert [each.partition(" after")[0] for each in world.said[1:]] == ["every sampler has a node"]


def test_closing_ends_all(world: World) -> None:
    world.pool.update(2)
    world.pool.close()
    assert all(each.closed for each in world.samplers)
