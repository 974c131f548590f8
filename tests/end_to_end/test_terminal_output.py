"""Every command on 80 columns, with names and texts that rich would read as markup and emoji codes.

Lines of text break between words and tables between columns, so nothing is cut and no line is longer than the terminal.
"""

from __future__ import annotations

import json
import os
import pty
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ
from typing import Any

import pytest
import typer.main

import ascent
from ascent.algorithms import TABLE
from ascent.api import quickstart
from ascent.cli import main
from ascent.cli.quickstart import print_result
from ascent.config.load import shipped_recipes
from ascent.maths.estimates import Estimate
from ascent.metrics import REGISTRY
from ascent.models.tiny import create
from ascent.records import Completion, Message, Prompt, Rollout, Turn
from tests.end_to_end import rewarded

WORDS = "[red]:100:"
TEXT = f"say {WORDS} [/]"
REWARD = f"{rewarded.__file__}:shuffled"
ROLLOUTS = ["rollouts.prompts_per_step=2", "rollouts.group_size=4", "rollouts.max_new_tokens=4"]
QUICK = ["--samples", "2", "--max-new-tokens", "4"]
ROW = f'''
from dataclasses import replace
from ascent.algorithms import TABLE
COOL = replace(TABLE["sft"], name="{WORDS}", title="{TEXT}", pitfalls=("{TEXT}",))
'''


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two models, data, a row of one's own, a run of SFT, one of GRPO and a reward model; all with odd names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("world"))
        for seed, name in enumerate("ab"):
            create(f"{name}{WORDS}", seed=seed)
        rows = [{"prompt": f"{TEXT} {number}", "answer": WORDS} for number in range(4)]
        pairs = [
            {"prompt": f"{TEXT} {number}", "chosen": WORDS, "rejected": "[/]"}
            for number in range(8)
        ]
        write("data[red]:100:.jsonl", rows)
        write("pairs[red]:100:.jsonl", pairs)
        Path("mine.py").write_text(ROW)
        Path("style.py").write_text("def first(prompt, first, second): return 1.0\n")
        short = {"run.steps": 1, "run.save_every": 1, "data.batch_size": 4}
        quiet = {"progress": False, "say": lambda line: None}
        model = {"model.policy": f"a{WORDS}"}
        ascent.train(
            {"algorithm": "sft", **model, "data.train": "arithmetic:8", **short},
            run=f"runs/sft{WORDS}",
            **quiet,
        )
        ascent.train(
            {"algorithm": "reward_model", **model, "data.train": f"pairs{WORDS}.jsonl", **short},
            run=f"runs/rm{WORDS}",
            **quiet,
        )
        sampled = {"algorithm": "grpo", **model, "data.train": f"data{WORDS}.jsonl", "run.steps": 1}
        ascent.train(
            {**sampled, "rewards": [{"use": REWARD}]}, ROLLOUTS, run=f"runs/rl{WORDS}", **quiet
        )
        yield


def write(name: str, rows: list[dict[str, str]]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


RL = [
    "grpo",
    f"model='a{WORDS}'",
    f"data=data{WORDS}.jsonl",
    "run.steps=1",
    f"rewards=[{{use: '{REWARD}'}}]",
    *ROLLOUTS,
]
COMMANDS = {
    "train": ["train", *RL, "--run", f"runs/new{WORDS}"],
    "resume": ["resume", f"runs/new{WORDS}"],  # an error: it is finished
    "check": ["check", *RL],
    "sweep": ["sweep", *RL, "update.learning_rate=1e-5,1e-6", "--run", f"runs/sweep{WORDS}"],
    "sample": ["sample", f"a{WORDS}", TEXT, *QUICK],
    "evaluate": [
        "evaluate",
        f"a{WORDS}",
        f"data{WORDS}.jsonl",
        "--reward",
        "exact",
        "--show",
        "1",
        *QUICK,
    ],
    "compare": [
        *("compare", f"a{WORDS}", f"b{WORDS}", f"data{WORDS}.jsonl", "--judge", f"runs/rm{WORDS}"),
        *("--max-new-tokens", "4"),
    ],
    "score": ["score", f"runs/rm{WORDS}", f"pairs{WORDS}.jsonl"],
    "export": ["export", f"runs/sft{WORDS}", f"exported{WORDS}"],
    "inspect": ["inspect", f"pairs{WORDS}.jsonl", "--model", f"a{WORDS}"],
    "collect": [
        *("collect", f"a{WORDS}", f"data{WORDS}.jsonl", "--out", f"labels{WORDS}.jsonl", *QUICK),
        *("--judge", f"runs/rm{WORDS}"),
    ],
    "runs": ["runs", "runs"],
    "compare-runs": ["compare-runs", f"runs/sft{WORDS}", f"runs/rl{WORDS}"],
    "diagnose": ["diagnose", f"runs/rl{WORDS}"],
    "replay": ["replay", f"runs/rl{WORDS}", "--step", "1"],
    "forecast-score": ["forecast-score", f"runs/rl{WORDS}"],
    "show run": ["show", "run", f"runs/rl{WORDS}"],
    "show samples": ["show", "samples", f"runs/rl{WORDS}"],
    "show config": ["show", "config", *RL],
    "show algorithm": ["show", "algorithm", "mine.py:COOL"],
    "a wrong name": ["sample", f"no{WORDS}", "a"],
}
MACHINE_READABLE = {"score", "show config"}  # one record, or one key, on a line
PLAIN = {
    "help": ["--help"],
    "help of train": ["train", "--help"],
    "help of show": ["show", "--help"],
    "recipes": ["recipes"],
    "doctor": ["doctor"],
    "show algorithms": ["show", "algorithms"],
    "show metrics": ["show", "metrics"],
    "show algorithms --like": ["show", "algorithms", "--like", "entropy bonus"],
    **{
        f"show algorithm {name}": ["show", "algorithm", name]
        for name in ("grpo", "dpo", "ppo", "sft")
    },
}


@pytest.fixture
def output_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Runs a command and returns all that it prints, errors included."""

    def call(arguments: list[str], columns: str | None = "80") -> str:
        for name in ("COLUMNS", "TERMINAL_WIDTH"):
            monkeypatch.delenv(name, raising=False) if columns is None else monkeypatch.setenv(
                name, columns
            )
        monkeypatch.setattr(sys, "argv", ["ascent", *arguments])
        with pytest.raises(SystemExit):
            main.run()
        return "".join(capsys.readouterr())

    return call


def too_long(text: str) -> list[str]:
    """Lines beyond 80 columns that could have been broken."""
    return [line for line in text.splitlines() if len(line) > 80 and " " in line.strip()]


@pytest.mark.parametrize("name", COMMANDS)
def test_words_of_users_stay_what_they_are_on_80_columns(
    name: str, world: None, output_of: Callable[..., str]
) -> None:
    shown = output_of(COMMANDS[name])
    assert "💯" not in shown and (WORDS in shown or "score" in name)  # which print numbers
    if name not in MACHINE_READABLE:
        assert too_long(shown.partition("config:")[0]) == []


def test_every_command_is_here() -> None:
    """quickstart has a test of its own; iterate, bisect, forecast and serve-reward print what train, replay, check,
    collect and compare print; view, label and serve print an address; samplers needs a run on Ray; classic takes no
    words."""
    group: Any = typer.main.get_command(main.app)
    known = {name for name, each in group.commands.items() if not each.hidden}
    tried = {arguments[0] for arguments in (*COMMANDS.values(), *PLAIN.values())}
    servers = {"view", "label", "serve", "serve-reward"}
    assert known - tried == {
        "quickstart",
        "iterate",
        "bisect",
        "forecast",
        "classic",
        "samplers",
        *servers,
    }


@pytest.mark.parametrize("name", PLAIN)
def test_no_line_is_longer_than_80_columns(name: str, output_of: Callable[..., str]) -> None:
    assert too_long(output_of(PLAIN[name])) == []


def test_known_names_are_whole_on_80_columns(output_of: Callable[..., str]) -> None:
    for command, names in (
        ("show algorithms", list(TABLE)),
        ("show metrics", [each.name for each in REGISTRY]),
        ("recipes", list(shipped_recipes())),
        ("help", ["quickstart", "serve-reward", "compare-runs"]),
    ):
        words = output_of(PLAIN[command]).split()
        assert set(names) <= set(words), command


def test_a_pipe_gets_one_row_on_a_line(output_of: Callable[..., str]) -> None:
    lines = output_of(["show", "metrics"], None).splitlines()
    assert [line.split()[0] for line in lines[2:]] == [each.name for each in REGISTRY]


def test_the_end_of_the_quick_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(text: str) -> Rollout:
        completion = Completion("0", 0, (1,), (0.0,), (0,), "eos")
        return Rollout(
            Prompt("0", (Message("user", TEXT),), answer="b"), 0, (Turn((1,), completion, text),)
        )

    models = [
        quickstart.ModelResult(
            WORDS,
            Path("runs") / WORDS,
            1.0,
            {"greedy/correct": Estimate(0.5, 0.4, 0.6, 4)},
            [given],
        )
        for given in (answer("[/]"), answer("b"))
    ]
    pairs = [(models[0].answers[0], models[1].answers[0])]
    monkeypatch.setattr(quickstart.QuickstartResult, "improved", lambda self: pairs)
    monkeypatch.setenv("COLUMNS", "80")
    print_result(
        quickstart.QuickstartResult(WORDS, "correct", tuple(models), Path("runs") / WORDS, (TEXT,))
    )
    shown = capsys.readouterr().out
    assert shown.count(WORDS) >= 6 and "💯" not in shown and too_long(shown) == []


@pytest.mark.parametrize("color", [True, False])
def test_a_terminal_of_80_columns(color: bool) -> None:
    """A real one, by its own size: colors unless NO_COLOR is set, and every name whole."""
    shown = on_a_terminal(["show", "algorithm", "grpo"], {} if color else {"NO_COLOR": "1"})
    assert ("\x1b[1mgrpo\x1b[0m" in shown) and "sequence_mean_token_mean" in shown
    plain = shown.replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert too_long(plain) == []


def on_a_terminal(arguments: list[str], more: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    command = subprocess.Popen(
        [sys.executable, "-m", "ascent", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=env | {"TERM": "xterm"} | more,
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # how a terminal ends
        pass
    os.close(ours)
    assert command.wait() == 0
    return shown.decode()
