"""What the page needs beside the package, and that nothing but the known files of the charts is served."""

from __future__ import annotations

import re
from importlib.machinery import ModuleSpec
from pathlib import Path

import httpx
import pytest

from ascent.view import extra
from ascent.view.server import make_app
from tests.view.browser import serving

ROOT = Path(__file__).parents[2]


def place(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    """Make `folder` the place of the package."""
    spec = None if folder is None else ModuleSpec("uplot", None, is_package=True)
    if spec is not None:
        spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(extra, "find_spec", lambda name: spec)


def test_the_files_are_those_of_the_pinned_version() -> None:
    assert {path.name for path in extra.chart_folder().iterdir()} >= set(extra.CHARTS)
    assert f'"{extra.PACKAGE}"' in (ROOT / "pyproject.toml").read_text()
    assert re.search(rf"^{extra.PACKAGE}$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", extra.CHARTS)
def test_other_files_under_the_same_names_are_not_served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    own = extra.chart_folder()
    (tmp_path / "static").mkdir()
    for each in extra.CHARTS:
        (tmp_path / "static" / each).write_bytes((own / each).read_bytes())
    place(monkeypatch, tmp_path)
    assert extra.chart_folder() == tmp_path / "static"
    with (tmp_path / "static" / name).open("a") as file:
        file.write("\n")
    for use in (extra.require, extra.chart_folder, lambda: make_app([])):
        with pytest.raises(ValueError, match=rf"{re.escape(name)} is not that of {extra.PACKAGE}"):
            use()


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    place(monkeypatch, None)
    with pytest.raises(
        ValueError, match=r"starlette and uvicorn, which the extra view installs: pip install"
    ):
        extra.require()
    with pytest.raises(ValueError, match=r"uPlot from uplot-python==.* pip install"):
        extra.chart_folder()


def test_the_page_gets_them_from_this_server() -> None:
    with serving(make_app([])) as url:
        for name in extra.CHARTS:
            assert (
                httpx.get(f"{url}static/charts/{name}").content
                == (extra.chart_folder() / name).read_bytes()
            )
