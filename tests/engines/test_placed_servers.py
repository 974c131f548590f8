"""Servers that come and go during a run: each request is answered once, by the current weights."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ascent import progress
from ascent.engines import fleet as fleets
from ascent.engines import placed_servers
from ascent.engines.fleet import ServerFleet
from ascent.engines.remote import RemoteError
from ascent.records import Completion
from ascent.runs.sampler_files import PlacedServers, SamplerFiles
from ascent.setup import samplers
from ascent.setup.policy_weights import PolicyWeights
from ascent.setup.samplers import Engine, placed_fleet
from tests.engines.served import KEY, Served, served
from tests.engines.test_fleet import (
    REQUESTS,
    by_key,
    during,
    expected,
    folders,
    policy,
    served_policy,
    slowed,
)

__all__ = ["expected", "folders"]  # fixtures


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in ((fleets, "PAUSE_SECONDS", 0.1), (fleets, "REFRESH_SECONDS", 0.0)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(placed_servers, "POLL_SECONDS", 0.01)
    monkeypatch.setenv(samplers.SERVER_KEY, KEY)


@pytest.fixture
def three(folders: Path) -> Iterator[list[Served]]:
    with ExitStack() as stack:
        yield [stack.enter_context(served(folders / "old")) for _ in range(3)]


class Launcher:
    """Lists servers, as a launcher does."""

    def __init__(self, run: Path) -> None:
        self.files = SamplerFiles(run, "launch")

    def place(self, *servers: Served, error: str = "") -> None:
        self.files.place(PlacedServers(tuple(each.url for each in servers), error))

    def when_asked(self, act: Callable[[], None]) -> None:
        def wait() -> None:
            while self.files.wanted() is None:
                time.sleep(0.01)
            act()

        threading.Thread(target=wait, daemon=True).start()


def fleet(
    launcher: Launcher, folders: Path, place: Path, numerics: str | None = None
) -> ServerFleet:
    model = policy(folders)
    given = served_policy(model)
    given = samplers.replace(given, numerics=numerics)
    engine = Engine("remote", (), 30.0)
    return placed_fleet(engine, given, launcher.files, PolicyWeights(model, place / "weights"))


def few_at_once(sampler: ServerFleet) -> None:
    for each in sampler._servers:
        each.sampler.at_once = 4  # so that something is left to do when a change comes


def test_a_run_asks_with_a_model_that_stays(
    folders: Path, tmp_path: Path, three: list[Served]
) -> None:
    launcher = Launcher(tmp_path)
    launcher.when_asked(lambda: launcher.place(three[0]))
    sampler = fleet(launcher, folders, tmp_path)
    sampler.set_weights(3, {})
    wanted = launcher.files.wanted()
    assert (
        wanted is not None
        and wanted.model == str(tmp_path / "weights" / "3")
        and wanted.max_model_len == 64
    )
    sampler.set_weights(4, {})
    sampler.set_weights(5, {})
    assert sorted(each.name for each in (tmp_path / "weights").iterdir()) == [
        "3",
        "5",
    ]  # servers may start with 3
    sampler.close()
    assert not (tmp_path / "samplers").exists() and not (tmp_path / "weights").exists()


def test_servers_that_come_and_go(
    folders: Path, tmp_path: Path, three: list[Served], expected: dict[tuple[str, int], Completion]
) -> None:
    launcher = Launcher(tmp_path)
    launcher.when_asked(lambda: launcher.place(three[0], three[1]))
    sampler = fleet(launcher, folders, tmp_path)
    sampler.set_weights(3, {})
    few_at_once(sampler)
    for each in three[:2]:
        slowed(each, 0.2)
    # The first goes, the third comes: it has old weights, and gets the current ones before any request.
    assert during(sampler, lambda: launcher.place(three[1], three[2])) == expected
    assert three[2].server._engine.version == 3 and three[2].server._engine.stats().requests > 0
    assert [each.url for each in sampler._servers] == [three[1].url, three[2].url]
    sampler.close()


def test_what_a_server_that_is_gone_was_asked_is_not_waited_for(
    folders: Path, tmp_path: Path, three: list[Served], expected: dict[tuple[str, int], Completion]
) -> None:
    launcher = Launcher(tmp_path)
    launcher.when_asked(lambda: launcher.place(three[0], three[1]))
    sampler = fleet(launcher, folders, tmp_path)
    sampler.set_weights(3, {})
    few_at_once(sampler)
    slowed(three[0], 20.0)  # it takes requests and is silent, as a machine without a network
    began = time.monotonic()
    assert during(sampler, lambda: launcher.place(three[1])) == expected
    assert time.monotonic() - began < 20.0
    sampler.close()


def test_all_may_go_and_others_come(
    folders: Path, tmp_path: Path, three: list[Served], expected: dict[tuple[str, int], Completion]
) -> None:
    launcher = Launcher(tmp_path)
    launcher.when_asked(lambda: launcher.place(three[0]))
    sampler = fleet(launcher, folders, tmp_path)
    sampler.set_weights(3, {})
    few_at_once(sampler)

    def change() -> None:
        launcher.place()
        threading.Timer(0.5, lambda: launcher.place(three[2])).start()

    slowed(three[0], 0.2)
    assert during(sampler, change) == expected
    launcher.place()
    threading.Timer(0.5, lambda: launcher.place(three[1])).start()
    sampler.set_weights(3, {})
    assert by_key(sampler.sample(REQUESTS)) == expected
    sampler.close()


def test_one_that_does_not_answer_yet_is_tried_again(
    folders: Path, tmp_path: Path, three: list[Served]
) -> None:
    launcher = Launcher(tmp_path)
    absent = Served(folders / "old")
    absent.stop()
    launcher.when_asked(lambda: launcher.place(absent, three[0]))
    sampler = fleet(launcher, folders, tmp_path)
    sampler.set_weights(3, {})
    assert [each.url for each in sampler._servers] == [three[0].url]
    sampler.close()


def test_waiting_for_the_first_sampler_is_said(
    folders: Path, tmp_path: Path, three: list[Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "FIRST_NOTE", 0.05)
    monkeypatch.setattr(progress, "SECOND_NOTE", 0.1)
    launcher, absent = Launcher(tmp_path), Served(folders / "old")
    absent.stop()
    sampler = fleet(launcher, folders, tmp_path)
    said: list[str] = []

    def listen(text: str) -> None:  # each note is the sign for the next change
        said.append(text)
        launcher.place(*([absent] if "lists none yet" in text else [three[0]]))

    with progress.notes_to(listen):
        sampler.set_weights(3, {})
    first = r"waiting for the first sampler for 0 s, since [0-9:]+: "
    assert re.fullmatch(
        f"{first}the launcher lists none yet; the run ends after 1800 s", said[0]
    ), said
    assert any(re.match(rf"{first}{absent.url}: .*Connection refused", each) for each in said), said
    assert any(each.startswith("the first sampler answers after") for each in said), said
    sampler.close()


def test_a_launcher_that_gave_up_ends_the_run_with_its_reason(
    folders: Path, tmp_path: Path
) -> None:
    launcher = Launcher(tmp_path)
    launcher.when_asked(lambda: launcher.place(error="5 samplers in a row did not start"))
    with pytest.raises(RemoteError, match="5 samplers in a row did not start"):
        fleet(launcher, folders, tmp_path).set_weights(3, {})


def test_a_server_with_other_numerics_is_refused_where_bits_matter(
    folders: Path, tmp_path: Path, three: list[Served]
) -> None:
    launcher = Launcher(tmp_path)
    launcher.when_asked(lambda: launcher.place(three[0]))
    sampler = fleet(launcher, folders, tmp_path, numerics="another CPU")
    assert sampler.exact
    with pytest.raises(
        RemoteError, match=r"computes other bits .* than the trainer \(another CPU\)"
    ):
        sampler.set_weights(3, {})
