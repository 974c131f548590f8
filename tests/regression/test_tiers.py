"""Tiers are chosen by recorded durations, and what exceeds the limits of `make test` fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests import tiers
from tests.durations import Cost, read_table, write_table
from tests.tiers import LIMIT, REPRESENTATIVES, choose, draw_rows, over_limit, tier_of

pytest_plugins = ["pytester"]


def case(name: str, *parameters: Any) -> Any:
    callspec = SimpleNamespace(params=dict(enumerate(parameters)))
    return SimpleNamespace(nodeid=f"tests/test_a.py::{name}", callspec=callspec)


COSTS = {
    "tests/test_a.py::test_rows[sft]": Cost(0.9, 0.9),
    "tests/test_a.py::test_rows[dft]": Cost(1.0, 1.0),
    "tests/test_a.py::test_rows[dpo]": Cost(1.1, 1.1),
    "tests/test_a.py::test_rows[ipo]": Cost(1.2, 1.2),
    "tests/test_a.py::test_rows[grpo]": Cost(1.3, 1.3),
    "tests/test_a.py::test_rows[ppo]": Cost(2.9, 2.9),
    "tests/test_a.py::test_sizes[1]": Cost(0.5, 0.5),
    "tests/test_a.py::test_sizes[2]": Cost(0.4, 0.4),
    "tests/test_a.py::test_waits": Cost(0.1, 5.5),
    "tests/test_a.py::test_works": Cost(3.1, 1.0),  # in child processes
}
ITEMS = [
    *(case(f"test_rows[{row}]", row) for row in ("sft", "dft", "dpo", "ipo", "grpo", "ppo")),
    *(case(f"test_sizes[{size}]", size) for size in (1, 2)),
    *(case(name) for name in ("test_waits", "test_works", "test_fast")),
]


def names(cases: Any) -> list[str]:
    return sorted(getattr(case, "nodeid", case).partition("::test_")[2] for case in cases)


def test_the_cheapest_of_each_function_and_source_and_the_drawn_rows_as_far_as_they_are_cheap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = names(choose(ITEMS, COSTS, drawn=()))
    assert chosen == ["fast", "rows[dpo]", "rows[grpo]", "rows[sft]", "sizes[2]"]
    drawn = choose(ITEMS, COSTS, drawn=("ipo", "ppo"))
    assert names(drawn) == sorted([*chosen, "rows[ipo]"])  # ppo costs too much
    monkeypatch.setattr(tiers, "REPRESENTATIVES", ("tests/test_a.py::test_sizes",))
    assert names(choose(ITEMS, COSTS, drawn=())) == sorted([*chosen, "sizes[1]"])


def test_the_tiers_leave_nothing_out_and_the_first_is_part_of_the_second() -> None:
    check, test, rest = (tier_of(ITEMS, tier, COSTS) for tier in ("check", "test", "rest"))
    assert names(check) == ["fast"]
    assert {*names(check)} <= {*names(test)}
    assert sorted(names(test) + names(rest)) == names(ITEMS)


def test_the_same_rows_are_drawn_for_a_commit() -> None:
    drawn = draw_rows()
    tiers.read_commit.cache_clear()
    assert draw_rows() == drawn and len(set(drawn)) == tiers.DRAWN


def test_a_function_with_many_cases_has_some_of_them_in_the_first_tier() -> None:
    many = [case(f"test_many[{number}]", number) for number in range(50)]
    check = tier_of([*many, case("test_one")], "check", COSTS)
    assert len(check) == tiers.MOST + 1 and names(check) == names(tier_of(check, "check", COSTS))


def test_a_case_over_the_limits_is_told_what_to_do() -> None:
    new, old = "tests/test_a.py::test_new", "tests/test_a.py::test_rows[dpo]"
    assert over_limit(new, LIMIT, COSTS, slowness=1.0) is None
    told = over_limit(new, Cost(3.5, 3.5), COSTS, slowness=1.0)
    assert told is not None and "says below 0.3 s" in told
    assert "pytest --record-durations tests/test_a.py" in told
    assert "says 1.1 s and 1.1 s" in (over_limit(old, Cost(0.1, 6.5), COSTS, 1.0) or "")
    assert over_limit(new, Cost(3.5, 6.5), COSTS, slowness=1.5) is None


SLOW = """
import time
import pytest
from tests import tiers

def test_slow():
    time.sleep(0.2)

def test_fast():
    pass
"""


@pytest.mark.parametrize(("wall", "failed"), [(0.1, 1), (5.0, 0)])
def test_a_case_over_the_limits_fails_the_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, wall: float, failed: int
) -> None:
    monkeypatch.setattr(tiers, "LIMIT", Cost(3.0, wall))
    monkeypatch.setattr(tiers, "measure_slowness", lambda: 1.0)
    pytester.makepyfile(SLOW)
    options = ("-p", "tests.durations", "-p", "tests.tiers", "--tier", "check")
    run = pytester.inline_run(*options, "-p", "no:cacheprovider", "-p", "no:xdist")
    run.assertoutcome(passed=2, failed=failed)


def test_the_table_is_read_as_it_was_written(tmp_path) -> None:
    costs = {
        "tests/test_a.py::test_x[a b::c]": Cost(1.5, 2.25),
        "tests/test_a.py::fixture trained": Cost(20.0, 21.0),
        "tests/b/test_b.py::TestIt::test_y": Cost(0.31, 0.4),
    }
    write_table(costs, tmp_path / "table")
    assert read_table(tmp_path / "table") == costs


def test_representatives_exist_and_are_cheap_enough() -> None:
    table = read_table()
    for each in REPRESENTATIVES:
        cases = [case for case in table if each in (case, case.partition("[")[0])]
        assert any(tiers.affordable(table[case]) for case in cases), each
