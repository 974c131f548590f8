"""Counts the three classes of golden cases and prints them at the end of the run, with reasons for what is left out.

The hook must be known to the process that prints: with parallel workers that one loads `tests/conftest.py` but not the
conftest of this folder. Import it in both; it writes once.
"""

from __future__ import annotations

from collections import Counter

import pytest

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
    applicable = len(seen) - classes["not applicable"]
    terminalreporter.section("golden conformance")
    write = terminalreporter.write_line
    write(f"{len(seen)} cases, {sum(value['numbers'] for value, _ in seen)} numbers compared, {failed} cases failed")
    write(f"  reproduced            {classes['reproduced']}")
    share = classes["differing on purpose"] / max(applicable, 1)
    write(f"  differing on purpose  {classes['differing on purpose']} ({share:.1%} of {applicable} applicable)")
    write(f"  not applicable        {classes['not applicable']}")
    for name in ("differing on purpose", "not applicable"):
        reasons = Counter(reason for value, _ in seen if value["kind"] == name for reason in value["reasons"])
        write(f"{name}, by reason:")
        for reason, count in sorted(reasons.items()):
            write(f"  {count:4d}  {reason}")
