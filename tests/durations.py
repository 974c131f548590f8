"""What each test case costs: seconds of processor time, those of its child processes included, and of wall time.

Loaded by tests/conftest.py in every process. `pytest --record-durations` writes what the run measured into
durations.txt, from which tests/tiers.py chooses. What a fixture of a file or of the session costs stands there under
the fixture's name: which of its cases pays for it is chance.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

TABLE = Path(__file__).with_name("durations.txt")
FAST = 0.3  # seconds; what costs less is in every tier and not in the table
HEAD = """\
# Seconds of processor time and of wall time, by `pytest --record-durations` (tests/durations.py). Cases below {fast} s
# are not listed. "fixture" and a name: what is set up once for a file or for the session.
"""


class Cost(NamedTuple):
    cpu: float
    wall: float

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.cpu - other.cpu, self.wall - other.wall)

    def __add__(self, other: tuple[float, ...]) -> Cost:
        return Cost(self.cpu + other[0], self.wall + other[1])


Costs = dict[str, Cost]  # by case, and by fixture: "tests/folder/test_file.py::fixture name"


def fixture_key(fixture: Any) -> str:
    return f"{fixture.baseid or 'tests'}::fixture {fixture.argname}"


# The table: the path of a file, and below it a line for each of its cases.


def read_table(path: Path = TABLE) -> Costs:
    costs, file = {}, ""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        if line.startswith(" "):
            cpu, wall, name = line.split(maxsplit=2)
            costs[f"{file}::{name}"] = Cost(float(cpu), float(wall))
        elif not line.startswith("#"):
            file = line
    return costs


def write_table(costs: Costs, path: Path = TABLE) -> None:
    lines = [HEAD.format(fast=FAST)]
    before = ""
    for key in sorted(costs):
        file, _, name = key.partition("::")
        if file != before:
            lines.append(f"{file}\n")
        lines.append(f"  {costs[key].cpu:6.2f} {costs[key].wall:6.2f}  {name}\n")
        before = file
    path.write_text("".join(lines), encoding="utf-8")


# Measuring, in the process that runs a case.


def spent() -> Cost:
    times = os.times()
    children = times.children_user + times.children_system
    return Cost(times.user + times.system + children, times.elapsed)


class Meter:
    """Splits what a process spends between the case that runs and the fixtures that outlive it."""

    def __init__(self) -> None:
        self._start = self._shared = Cost(0, 0)
        self._fixtures: Costs = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        self._start, self._shared, self._fixtures = spent(), Cost(0, 0), {}
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        if fixturedef.scope == "function":
            return (yield)
        start = spent()
        try:
            return (yield)
        finally:
            cost = spent() - start
            self._shared += cost
            self._fixtures[fixture_key(fixturedef)] = cost

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[Any]:
        report = yield
        if report.when == "teardown":
            own = spent() - self._start - self._shared
            # Children count where they end: a server that earlier cases have used may end here.
            own = Cost(min(own.cpu, own.wall), own.wall)
            costs = {report.nodeid: own, **self._fixtures}
            report.costs = {key: list(cost) for key, cost in costs.items()}  # for execnet
        return report


class Recorder:
    """Collects the reports of all processes and writes the table at the end."""

    def __init__(self) -> None:
        self.costs: Costs = {}
        self.seen: set[str] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        for key, cost in getattr(report, "costs", {}).items():
            self.seen.add(key)
            if max(cost) >= FAST:
                # A test that is tried again, or a fixture of several processes: as long as the longest.
                self.costs[key] = Cost(*max(tuple(cost), self.costs.get(key, (0, 0))))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        known = {key: cost for key, cost in read_table().items() if key not in self.seen}
        write_table({key: known[key] for key in known if exists(key)} | self.costs)


def exists(key: str) -> bool:
    """Whether the file of a case or fixture still defines it."""
    file, _, name = key.partition("::")
    path = Path(__file__).parents[1] / file
    function = name.rpartition("::")[2].partition("[")[0].removeprefix("fixture ")
    return path.is_dir() or (path.exists() and f"def {function}(" in path.read_text())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-durations",
        action="store_true",
        help="write what the cases of this run cost into tests/durations.txt",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Meter(), "meter of durations")
    if config.option.record_durations and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(), "recorder of durations")
