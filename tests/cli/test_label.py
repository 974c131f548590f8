"""`ascent label`: errors are one line before anything is served. Whole sessions: tests/end_to_end/test_label.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["absent.jsonl"], "no file or folder at absent.jsonl"),
        (
            ["a.jsonl", "--overlap", "2"],
            "overlap=2.0, but it is a share of the comparisons: 0 to 1",
        ),
        (
            ["a.jsonl", "--host", "no.such.host.invalid"],
            "cannot listen at no.such.host.invalid port 0",
        ),
    ],
)
def test_errors(tmp_path: Path, words: list[str], problem: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "q", "responses": ["a", "b"]}\n')
    command = [sys.executable, "-m", "ascent", "label", *words, "--port", "0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("ascent: ") and problem in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr and [each.name for each in tmp_path.iterdir()] == [
        "a.jsonl"
    ]
