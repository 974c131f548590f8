"""Counts the classes of golden cases and prints them at the end of the run, with reasons for all but plain agreement.

The hook must be known to the process that prints: with parallel workers that one loads `tests/conftest.py` but not the
conftest of this folder. Import it in both; it writes once.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.golden.cases import BY_CONVENTION, DIFFERING, NOT_APPLICABLE, REPRODUCED

PROPERTY = "golden"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Reads what the tests recorded about themselves."""
    if getattr(terminalreporter, PROPERTY, False):
        return
    setattr(terminalreporter, PROPERTY, True)
    seen = [
        (value, outcome)
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        if getattr(report, "when", "") == "call"
        for name, value in report.user_properties
        if name == PROPERTY
    ]
    if not seen:
        return
    classes = Counter(value["kind"] for value, outcome in seen if outcome == "passed")
    failed = len(seen) - classes.total()
    applicable = len(seen) - classes[NOT_APPLICABLE]
    terminalreporter.section("golden conformance")
    write = terminalreporter.write_line
    write(
        f"{len(seen)} cases, {sum(value['numbers'] for value, _ in seen)} numbers compared, {failed} cases failed"
    )
    nearly = sum(value["kind"] == REPRODUCED and bool(value["reasons"]) for value, _ in seen)
    write(
        f"  reproduced plainly         {classes[REPRODUCED]} ({nearly} of them to one part in 1e8)"
    )
    write(f"  by a peer's convention     {classes[BY_CONVENTION]}")
    write(f"  differing on purpose       {classes[DIFFERING]}")
    apart = classes[BY_CONVENTION] + classes[DIFFERING]
    write(
        f"the last two together: {apart} of {applicable} applicable, {apart / max(applicable, 1):.1%}"
    )
    for name in (BY_CONVENTION, DIFFERING, NOT_APPLICABLE):
        reasons = Counter(
            reason for value, _ in seen if value["kind"] == name for reason in value["reasons"]
        )
        if reasons:
            write(f"{name}, by reason:")
        for reason, count in sorted(reasons.items()):
            write(f"  {count:4d}  {reason}")
