"""A line at the end of a test run that had no browser: skipped tests are easy to overlook."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [
        each
        for each in terminalreporter.stats.get("skipped", [])
        if "NO BROWSER" in str(each.longrepr)
    ]
    if skipped:
        reason = (
            str(skipped[0].longrepr[2])
            if isinstance(skipped[0].longrepr, tuple)
            else str(skipped[0].longrepr)
        )
        terminalreporter.section(f"{len(skipped)} tests of pages skipped", sep="!")
        terminalreporter.write_line(reason.removeprefix("Skipped: "), red=True, bold=True)
