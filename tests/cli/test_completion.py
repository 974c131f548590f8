"""Shell completion: the names, typer's scripts, and no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ascent.algorithms import TABLE
from ascent.cli.completion import algorithm_names, recipe_names, run_folders
from ascent.config.load import shipped_recipes


def test_algorithms_are_those_of_the_table() -> None:
    assert algorithm_names("") == sorted(TABLE)
    assert algorithm_names("grpo_p") == sorted(name for name in TABLE if name.startswith("grpo_p"))


def test_recipes_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    for name in ("mine.yaml", "mine.txt", ".hidden.yaml", "mine/a.yml"):
        (tmp_path / name).touch()
    assert recipe_names("rlh") == ["rlhf", "rlhf_iterated"]
    assert set(recipe_names("")) == {*shipped_recipes(), *TABLE, "mine/", "mine.yaml"}
    assert recipe_names("mine/") == ["mine/a.yml"]
    assert recipe_names(f"{tmp_path}/mine.") == [f"{tmp_path}/mine.yaml"]
    assert recipe_names("nowhere/x") == []


def test_runs_are_folders_with_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/sft", "runs/dpo", "runs/notes"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("sft", "dpo"):
        (tmp_path / "runs" / name / "config.yaml").touch()
    assert run_folders("ru") == ["runs/"]
    assert run_folders("runs/") == ["runs/dpo", "runs/sft"]
    assert run_folders("runs/s") == ["runs/sft"]


def complete(words: str, *python: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "_ASCENT_COMPLETE": "complete_bash", "COMP_WORDS": words}
    environment["COMP_CWORD"] = str(
        len(words.split()) if words.endswith(" ") else len(words.split()) - 1
    )
    code = "import sys; sys.argv = ['ascent']; from ascent.cli.main import app; app(prog_name='ascent')"
    command = [sys.executable, *python, "-c", code]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("ascent tr", ["train"]),
        ("ascent train rlh", ["rlhf", "rlhf_iterated"]),
        ("ascent show algorithm dap", ["dapo"]),
        ("ascent show me", ["metrics"]),
    ],
)
def test_the_shell_gets_them_without_torch(words: str, found: list[str]) -> None:
    done = complete(words, "-X", "importtime")
    assert done.stdout.split() == found
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"torch", "transformers", "numpy"}


def test_the_shell_completes_run_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs" / "sft").mkdir(parents=True)
    (tmp_path / "runs" / "sft" / "config.yaml").touch()
    monkeypatch.chdir(tmp_path)
    for command in ("resume", "show run", "sample", "evaluate", "export"):
        assert complete(f"ascent {command} runs/").stdout.split() == ["runs/sft"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_shown(shell: str) -> None:
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "ascent", "--show-completion", shell],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and "complete" in done.stdout.lower()


def test_the_script_is_installed(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-m", "ascent", "--install-completion", "bash"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "completion installed" in done.stdout and (tmp_path / ".bashrc").is_file()
