"""The page over the trained runs, one server for all tests of this folder, and how to read what it shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from ascent.view.library import Library
from ascent.view.page import page_app
from tests.view.browser import serving

RLVR, OTHER = "sort/rlvr/seed-1", "sort/rlvr/seed-2"


@pytest.fixture(scope="session")
def url(trained: Path) -> Iterator[str]:
    with serving(page_app(Library([trained]))) as found:
        yield found


def at(url: str, run: str, **query: Any) -> str:
    return f"{url}#/run?run={quote(run)}" + "".join(
        f"&{key}={quote(str(value))}" for key, value in query.items()
    )


def texts(page: Any, selector: str) -> list[str]:
    return [each.inner_text() for each in page.query_selector_all(selector)]


def shown(value: float, digits: int = 4) -> str:
    """As the page writes numbers (base.js: formatNumber)."""
    if float(value).is_integer() and abs(value) < 1e7:
        text = f"{int(value):,}"
    elif 1e-3 <= abs(value) < 1e7:
        text = f"{float(f'{value:.{digits}g}'):.12g}"
    else:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        text = f"{float(mantissa):g}e{int(exponent)}"
    return text.replace("-", "−")


def point_at(page: Any, panel: Any, share: float) -> None:
    """Move the mouse over a chart, to this share of its width."""
    over = panel.locator(".u-over").bounding_box()
    page.mouse.move(over["x"] + over["width"] * share, over["y"] + over["height"] / 2)
