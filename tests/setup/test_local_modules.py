"""Which modules of one's own a file imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascent.setup.local_modules import local_files


def made(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def names(folder: Path, first: str = "reward.py") -> list[str]:
    return [each.relative_to(folder).as_posix() for each in local_files(folder / first)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import helping", ["helping.py"]),
        ("from helping import parity", ["helping.py"]),
        ("def f():\n    import helping as h", ["helping.py"]),
        ("import pack.inner", ["pack/__init__.py", "pack/inner.py"]),
        ("from pack import inner", ["pack/__init__.py", "pack/inner.py"]),
        ("from pack.deep import last", ["pack/__init__.py", "pack/deep/last.py"]),
        ("import chained", ["chained.py", "helping.py"]),
        ("from pack import relative", ["pack/__init__.py", "pack/inner.py", "pack/relative.py"]),
        ("import json, torch, ascent\nfrom ascent.records import Rollout", []),
        ("import nowhere", []),
        ("import round", ["round.py"]),
        ("import broken", ["broken.py"]),
    ],
)
def test_what_is_imported_is_found(text: str, expected: list[str], tmp_path: Path) -> None:
    made(
        tmp_path,
        {
            "reward.py": text,
            "helping.py": "",
            "unrelated.py": "",
            "json.py": "",
            "chained.py": "import helping",
            "pack/__init__.py": "",
            "pack/inner.py": "",
            "pack/relative.py": "from . import inner\nfrom .inner import x",
            "pack/deep/last.py": "",
            "round.py": "import reward",
            "broken.py": "def",
        },
    )
    assert names(tmp_path) == ["reward.py", *expected]


def test_modules_on_the_path_are_found_and_installed_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(
        tmp_path,
        {"rewards/reward.py": "import project.scoring\nimport yaml", "project/scoring.py": ""},
    )
    assert names(tmp_path, "rewards/reward.py") == ["rewards/reward.py"]
    monkeypatch.syspath_prepend(str(tmp_path))
    assert names(tmp_path, "rewards/reward.py") == ["rewards/reward.py", "project/scoring.py"]
