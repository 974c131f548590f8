"""Which cases belong to `make check` and `make test`: decided by what each costs (durations.txt), not by its folder.

`pytest --tier check` runs what costs less than FAST seconds: of a function with many cases, some that the commit draws.
`--tier test` adds, of every function whose cases cost
more, the cheapest case, the cheapest one of each source of rows that its cases train, and those of two rows that are
drawn by the commit, as far as they stay within the limits. `--tier rest` runs what `test` leaves out. Without the
option everything runs.

A case of `check` or `test` that exceeds the limits fails, so that neither grows by one test at a time.
"""

from __future__ import annotations

import random
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ascent.algorithms import TABLE
from tests.durations import FAST, Cost, Costs, fixture_key, read_table

ROOT = Path(__file__).parents[1]
TIERS = ("check", "test", "rest")
LIMIT = Cost(cpu=3.0, wall=6.0)  # of a case in `make test`, its children included
MARGIN = 0.6  # share of the limits that a case may have cost when durations were recorded
SHARED = 1.0  # seconds; what waits for a costlier fixture is no part of `make check`
DRAWN = 2  # rows
MOST = 12  # cases of a function in `make check`
NOTHING = Cost(0, 0)

# In `make test` although their functions have a cheaper case: resume, ranks, servers and pages, chosen by hand. Of a
# function without a case, all that stay within the limits.
REPRESENTATIVES = (
    "tests/api/test_train.py::test_every_row_that_learns_from_files_trains_and_resumes_to_the_same_bits[dpo]",
    "tests/api/test_train.py::test_every_row_that_learns_from_files_trains_and_resumes_to_the_same_bits[gkd]",
    "tests/api/test_train.py::test_every_row_that_learns_from_files_trains_and_resumes_to_the_same_bits[kto]",
    "tests/end_to_end/test_exact_resume.py::test_killed_at_random_instants[dpo-6]",
    "tests/end_to_end/test_features_in_pairs.py::"
    "test_killed_and_resumed_it_ends_in_the_same_bits_and_is_exported",
    "tests/end_to_end/test_overlap_pairs.py::test_overlap_changes_nothing",
    "tests/engines/native/test_engine.py::test_greedy_equals_transformers_generate[llama]",
    "tests/engines/test_fleet.py::test_a_server_that_fails_in_mid_step",
    "tests/rollouts/test_partial.py::test_every_group_is_trained_once_and_no_token_is_too_old",
    "tests/update/test_sharded_optim.py::test_a_state_does_not_know_how_many_ranks_wrote_it[2-1]",
    "tests/view/test_page.py::test_every_view_opens_at_every_width_without_a_serious_fault[runs]",
)


# Choosing.


def function_of(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def rows_of(item: pytest.Item) -> set[str]:
    """The rows of the table that a case's parameters name."""
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    names = (getattr(value, "name", value) for value in values)
    return {name for name in names if isinstance(name, str) and name in TABLE}


def shared_cost(item: pytest.Item, costs: Costs) -> float:
    """Of the dearest fixture that the case shares with others."""
    fixtures = getattr(item, "_fixtureinfo", None)
    found = fixtures.name2fixturedefs.values() if fixtures else ()
    keys = (fixture_key(each[-1]) for each in found if each[-1].scope != "function")
    return max((costs[key].cpu for key in keys if key in costs), default=0.0)


def affordable(cost: Cost) -> bool:
    return cost.cpu <= MARGIN * LIMIT.cpu and cost.wall <= MARGIN * LIMIT.wall


def choose(items: Sequence[pytest.Item], costs: Costs, drawn: Iterable[str]) -> set[str]:
    """The names of the cases of `make test`."""
    by_function: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if affordable(costs.get(item.nodeid, NOTHING)):
            by_function[function_of(item)].append(item)
    chosen, wanted, by_hand = set(), set(drawn), set(REPRESENTATIVES)
    for function, cases in by_function.items():
        cases.sort(key=lambda item: (max(costs.get(item.nodeid, NOTHING)), item.nodeid))
        seen: set[str] = set()
        for item in cases:
            rows = rows_of(item)
            sources = {TABLE[row].source for row in rows}
            if (
                item.nodeid not in costs
                or item is cases[0]
                or sources - seen
                or rows & wanted
                or not by_hand.isdisjoint((item.nodeid, function))
            ):
                chosen.add(item.nodeid)
                seen |= sources
    return chosen


@cache
def read_commit() -> str:
    command = ["git", "rev-parse", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def draw_rows() -> list[str]:
    """Other rows for every commit, the same ones in all processes."""
    return sorted(random.Random(read_commit()).sample(sorted(TABLE), DRAWN))


def draw_cases(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """At most MOST cases of each function, in their order; others for every commit."""
    by_function: dict[str, list[str]] = defaultdict(list)
    for item in items:
        by_function[function_of(item)].append(item.nodeid)
    kept = {
        case
        for function, cases in by_function.items()
        for case in random.Random(read_commit() + function).sample(cases, min(MOST, len(cases)))
    }
    return [item for item in items if item.nodeid in kept]


def tier_of(items: Sequence[pytest.Item], tier: str, costs: Costs) -> list[pytest.Item]:
    if tier == "check":
        fast = [
            item for item in items if item.nodeid not in costs and shared_cost(item, costs) < SHARED
        ]
        return draw_cases(fast)
    chosen = choose(items, costs, draw_rows())
    return [item for item in items if (item.nodeid in chosen) == (tier == "test")]


# The limits.


def measure_slowness() -> float:
    """How much longer a fixed piece of work takes than where the durations were recorded; at least 1."""
    start = time.process_time()
    sum(number * number % 7 for number in range(400_000))
    return max(1.0, (time.process_time() - start) / 0.03)


def over_limit(case: str, cost: Cost, costs: Mapping[str, Cost], slowness: float) -> str | None:
    """What is wrong with what a case of `make test` has cost."""
    if cost.cpu <= LIMIT.cpu * slowness and cost.wall <= LIMIT.wall * slowness:
        return None
    before = costs.get(case, NOTHING)
    known = f"{before.cpu:.1f} s and {before.wall:.1f} s" if case in costs else f"below {FAST} s"
    return (
        f"{case} took {cost.cpu:.1f} s of processor time and {cost.wall:.1f} s in all; a case of "
        f"make test may take {LIMIT.cpu:g} s and {LIMIT.wall:g} s, and tests/durations.txt says "
        f"{known}. Make it cheaper, or record it (pytest --record-durations "
        f"{case.partition('::')[0]}), and it runs in make test-all."
    )


class Limits:
    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.slowness = measure_slowness()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[Any]:
        report = yield
        if report.when == "teardown" and report.passed:
            cost = Cost(*report.costs[item.nodeid])
            message = over_limit(item.nodeid, cost, self.costs, self.slowness)
            if message:
                report.outcome, report.longrepr = "failed", message
        return report


# pytest's hooks.


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=TIERS, help="run the cases of one tier (tests/tiers.py)")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.tier in ("check", "test"):
        config.pluginmanager.register(Limits(read_table()), "limits of a case")


def pytest_report_header(config: pytest.Config) -> str | None:
    if config.option.tier in (None, "check"):
        return None
    return f"tier {config.option.tier}; rows drawn by the commit: {', '.join(draw_rows())}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.tier:
        kept = tier_of(items, config.option.tier, read_table())
        left = set(items) - set(kept)
        config.hook.pytest_deselected(items=list(left))
        items[:] = kept
