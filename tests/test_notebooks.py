"""The notebooks run from top to bottom, as a reader would run them, and are stored without outputs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
RUN = """
import sys
import nbformat
from nbclient import NotebookClient
book = nbformat.read(sys.argv[1], 4)
NotebookClient(book, timeout=300, resources={"metadata": {"path": sys.argv[2]}}).execute()
nbformat.write(book, sys.argv[2] + "/done.ipynb")
"""


def cells(path: Path) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(path.read_text())["cells"]
    return found


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first_run", "own_loop", "own_reward"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_stored_without_outputs(path: Path) -> None:
    for cell in cells(path):
        assert not cell.get("outputs") and cell.get("execution_count") is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    """In a kernel of its own, and in a process of its own: event loops and warnings of Jupyter are not ours."""
    pytest.importorskip("nbclient", reason="the extra `dev` is not installed")
    pytest.importorskip("ipykernel", reason="the extra `dev` is not installed")
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(path), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ran = [cell for cell in cells(tmp_path / "done.ipynb") if cell["cell_type"] == "code"]
    assert ran and all(cell["execution_count"] for cell in ran)
