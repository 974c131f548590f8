"""A real Chromium for the tests of pages: Debian's, driven by Playwright. No browser is downloaded."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from starlette.applications import Starlette

NO_BROWSER = "NO BROWSER: install Debian's package chromium, or name one in ASCENT_BROWSER; the pages were not tested"
WIDTHS = (1440, 1024, 390)


def find_browser() -> str | None:
    names = (os.environ.get("ASCENT_BROWSER", ""), "chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if name and (found := shutil.which(name))), None)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A browser; the tests are skipped where there is none, with a line at the end of the run."""
    path = find_browser()
    if path is None:
        pytest.skip(NO_BROWSER)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens an address in a new page: `open_page(url, width=390, dark=True)`. At the end of the test no page may have
    had an error, a message of the content security policy, or a request to another server."""
    contexts, complaints = [], list[str]()

    def open_one(url: str, *, width: int = 1440, height: int = 900, dark: bool = False) -> Any:
        scheme = "dark" if dark else "light"
        context = chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on(
            "console", lambda line: complaints.append(line.text) if _is_complaint(line) else None
        )
        page.on(
            "dialog",
            lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()),
        )
        own = url.split("/")[2]
        page.on(
            "request", lambda sent: complaints.append(sent.url) if _leaves(sent.url, own) else None
        )
        page.goto(url)
        return page

    open_one.complaints = complaints  # type: ignore[attr-defined]
    yield open_one
    for context in contexts:
        context.close()
    assert complaints == []


def _is_complaint(line: Any) -> bool:
    """Errors and warnings of the page; that a test has stopped its server is none."""
    return line.type in ("error", "warning") and "ERR_CONNECTION" not in line.text


def _leaves(url: str, own: str) -> bool:
    return url.split(":")[0] in ("http", "https", "ws", "wss") and url.split("/")[2] != own


@contextmanager
def serving(app: Starlette, *, token: str | None = None) -> Iterator[str]:
    """Serve an application in a thread, on a free port; gives its address."""
    import uvicorn  # this file is a plugin: other tests run where the extra view is not installed

    from ascent.view.server import link, listen

    sock = listen("127.0.0.1", 0)
    server = uvicorn.Server(
        uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off")
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield link("127.0.0.1", sock.getsockname()[1], token)
    finally:
        server.should_exit = True
        thread.join()
        sock.close()


def wait_for(page: Any, condition: str, *, seconds: float = 10) -> None:
    """Wait until an expression is true in a page. Playwright's own wait uses eval, which the page's policy forbids."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(f"Boolean({condition})"):
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        time.sleep(0.02)


def find_faults(page: Any) -> list[str]:
    """Serious and critical faults that axe, the accessibility checker, finds in a page."""
    import axe_playwright_python

    script = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text()
    page.evaluate(script)  # through the debugger, as the page's policy forbids foreign scripts
    found = json.loads(page.evaluate("axe.run().then((found) => JSON.stringify(found.violations))"))
    return [
        f"{each['id']}: {each['help']}: {node['html'][:120]} {node['failureSummary'][-160:]}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"][:3]
    ]
