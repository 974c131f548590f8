import os
import subprocess
import sys

import pytest

import ascent
from ascent.cli import main


def ascent_command(*arguments, python=()):
    return subprocess.run(
        [sys.executable, *python, "-m", "ascent", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_version():
    done = ascent_command("--version")
    assert (done.returncode, done.stdout) == (0, f"ascent {ascent.__version__}\n")


@pytest.mark.parametrize(
    ("given", "expected"), [(None, "AUTO,STRICT"), ("COMPATIBLE", "COMPATIBLE")]
)
def test_x86_sums_in_one_order_whatever_the_batch_unless_set_otherwise(given, expected):
    code = "import ascent, os; print(os.environ['MKL_CBWR'])"
    others = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    environment = others if given is None else {**others, "MKL_CBWR": given}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout == f"{expected}\n"


def processor_seconds(*arguments):
    before = os.times()
    subprocess.run([sys.executable, *arguments], capture_output=True, timeout=120, check=True)
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


def test_help_answers_within_three_times_the_import_of_typer():
    """.2 s on two idle cores. In processor time, best of up to ten, by turns: the machine may be slow or busy."""
    ours, typers = [], []
    while not ours or (min(ours) >= 3 * min(typers) and len(ours) < 10):
        typers.append(processor_seconds("-c", "import typer"))
        ours.append(processor_seconds("-m", "ascent", "--help"))
    assert 0 < min(ours) < 3 * min(typers), (ours, typers)


def imported_by(*arguments):
    done = ascent_command(*arguments, python=["-X", "importtime"])
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "ascent.cli.main" in imported
    return imported


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["recipes"], ["train", "--help"], ["show", "--help"]]
)
def test_light_verbs_import_no_torch(arguments):
    assert not {name.partition(".")[0] for name in imported_by(*arguments)} & {
        "torch",
        "numpy",
        "matplotlib",
    }


def test_help_imports_no_package_metadata():
    """It takes .02 s, which the test of the whole time may not see."""
    assert "importlib.metadata" not in imported_by("--help")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["show", "config", "rlvr", "rollouts.grup_size=4"],
            "ascent: rollouts.grup_size is not a key; did you mean",
        ),
        (
            ["show", "config", "rlvr", "rollouts.temperature=0"],
            "ascent: rollouts.temperature=0, but it must be at least 1e-06",
        ),
        (
            ["show", "config", "rlvr", "rollouts.group_size=1"],
            "ascent: rollouts.group_size=1 gives no baseline",
        ),
        (
            ["show", "config", "rlvr", "cells.policy_loss.low=-0.1"],
            "ascent: cells.policy_loss: clip: low=-0.1, but it must be at least",
        ),
        (["show", "config", "none.yaml"], "ascent: no recipe file at none.yaml"),
        (["show", "algorithm", "gpro"], "ascent: no algorithm named 'gpro'; did you mean"),
        (
            ["train", "rlvr", "--model", "m"],
            "ascent: there is no option --model; a key is set as KEY=VALUE: model=m",
        ),
        (
            ["check", "dpo", "--learning-rate=1"],
            "ascent: there is no option --learning-rate; a key is set as KEY=VALUE: u",
        ),
        (
            ["train", "grpo", "--num-generations", "8"],
            "ascent: there is no option --num-generations; a key is set as KEY=VALUE: rollouts.group_size=8",
        ),
        (
            ["train", "grpo", "--gradient-accumulation-steps=8"],
            "ascent: there is no option --gradient-accumulation-steps; micro-batches follow from",
        ),
        (
            ["train", "--resume", "runs/a"],
            "ascent: there is no option --resume; ascent resume RUN continues a run",
        ),
        (
            ["resume", "runs/lr=1", "run.steps=5"],
            "ascent: ascent resume takes no keys; set run.steps to 5 in the config.yaml of the run folder, then resume",
        ),
        (
            ["resume", "runs/a", "data.train=a/b.jsonl", "--processes", "2"],
            "ascent: ascent resume takes no keys; set data.train to a/b.jsonl in the config.yaml",
        ),
    ],
)
def test_errors_are_one_line_and_no_traceback(arguments, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ascent", *arguments])
    with pytest.raises(SystemExit) as caught:
        main.run()
    printed = capsys.readouterr()
    assert caught.value.code == 2
    assert printed.out == ""
    assert printed.err.startswith(words)
    assert printed.err.count("\n") == 1


def error_of(monkeypatch, capsys, *arguments):
    """The error lines of a command that must fail."""
    monkeypatch.setattr(sys, "argv", ["ascent", *arguments])
    with pytest.raises(SystemExit) as caught:
        main.run()
    printed = capsys.readouterr()
    assert caught.value.code == 2
    assert all(line.startswith("ascent: ") for line in printed.err.splitlines())
    return printed.err


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "data.batch_size=" + "1" + "0" * 30,
            "ascent: data.batch_size=1000000000000000000000000000000, but it must be ",
        ),
        (
            "run.steps=" + "9" * 5000,
            "line 1: not valid YAML: a number of 5000 digits; no key takes one so large",
        ),
        (
            "update.learning_rate=" + "9" * 400,
            "update.learning_rate=a number of about 400 digits, but it must be at mo",
        ),
        (
            "seed=1" + "0" * 30,
            "seed=1000000000000000000000000000000, but it must be at most 9223372036854775807",
        ),
        (
            "cells.policy_loss.low=" + "9" * 400,
            "cells.policy_loss.low=a number of about 400 digits, but it must be a number within",
        ),
        ("rewards=" + "[" * 3000, "line 1: not valid YAML: nested more than 100 deep"),
        ("cells.reward_shaping." + "a." * 5000 + "b=1", "has 5003 names with dots between"),
        ("run.project=\udcff", "line 1: not valid YAML: unacceptable character"),
    ],
)
def test_settings_without_meaning_are_refused(override, words, monkeypatch, capsys):
    printed = error_of(monkeypatch, capsys, "show", "config", "rlvr", override)
    assert words in printed and printed.count("\n") == 1 and len(printed) < 400


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (
            f"algorithm: sft\nrun:\n  steps: {'9' * 5000}\n",
            "mine.yaml, line 3: not valid YAML: a number of 5000 digits",
        ),
        (
            "algorithm: " + "[" * 5000,
            "mine.yaml, line 1: not valid YAML: nested more than 100 deep",
        ),
        (
            "algorithm: &a [*a, *a]\n",
            "mine.yaml, line 1: not valid YAML: found unconstructable recursive node",
        ),
        (
            "algorithm: sft\nalgorithm: sft\n",
            "mine.yaml, line 2: not valid YAML: the key 'algorithm' is given twice",
        ),
        (
            "algorithm: sft\nrun: \0\n",
            "mine.yaml, line 2: not valid YAML: unacceptable character #x0000",
        ),
        (
            "algorithm: sft\nrun:\n\tsteps: 4\n",
            "mine.yaml, line 3: not valid YAML: found character",
        ),
    ],
)
@pytest.mark.parametrize("command", ["show", "train", "check"])
def test_recipes_that_cannot_be_read_are_refused_with_their_line(
    command, recipe, words, tmp_path, monkeypatch, capsys
):
    (tmp_path / "mine.yaml").write_text(recipe)
    options = ["--run", str(tmp_path / "run")] if command == "train" else []
    printed = error_of(
        monkeypatch,
        capsys,
        *command.replace("show", "show config").split(),
        str(tmp_path / "mine.yaml"),
        *options,
    )
    assert words in printed and printed.count("\n") == 1
    assert not (tmp_path / "run").exists()


FINE = '{"prompt": "q", "completion": "a"}\n'
BAD_DATA = [
    (
        "a.jsonl",
        (FINE + '{"prompt": ' + "[" * 100_000).encode(),
        "a.jsonl:2: nested too deep to be read",
    ),
    (
        "a.jsonl",
        (FINE + f'{{"prompt": {"9" * 5000}}}').encode(),
        "a.jsonl:2: a number has thousands of digits",
    ),
    (
        "a.jsonl",
        (FINE + '{"prompt": "q", "prompt": "r"}').encode(),
        "a.jsonl:2: the name 'prompt' is given twice",
    ),
    ("a.jsonl", b'{"messages": []}', "a.jsonl:1: messages is an empty list; give it messages"),
    (
        "a.jsonl",
        FINE.encode() + b'{"prompt": "caf\xe9", "completion": "a"}',
        "a.jsonl:2: the line is not UTF-8",
    ),
    (
        "a.json",
        b'[{"prompt": "q", "completion": NaN}]',
        "a.json:1: NaN is not JSON; write a finite number, or null",
    ),
    (
        "a.csv",
        b"prompt,completion,completion\nq,a,b\n",
        "a.csv:1: the column name 'completion' is given twice",
    ),
    (
        "a.parquet",
        b"",
        "a.parquet is damaged or cut off: Parquet file size is 0 bytes; write it again",
    ),
    ("a.jsonl", FINE.encode("utf-16"), "a.jsonl is UTF-16; save it as UTF-8"),
]


@pytest.mark.parametrize(
    ("name", "content", "words"), BAD_DATA, ids=[words for *_, words in BAD_DATA]
)
def test_data_that_cannot_be_read_is_refused_by_every_command(
    name, content, words, tmp_path, monkeypatch, capsys
):
    (tmp_path / name).write_bytes(content)
    settings = ["sft", "model.policy=tiny:llama", f"data.train={tmp_path / name}"]
    assert words in error_of(
        monkeypatch, capsys, "train", *settings, "--run", str(tmp_path / "run")
    )
    assert not (tmp_path / "run").exists()
    assert words in error_of(monkeypatch, capsys, "check", *settings, "--no-progress")
    if (
        b"\n" not in content.strip()
    ):  # of several rows the others are shown, and the bad one is counted
        assert words in error_of(monkeypatch, capsys, "inspect", str(tmp_path / name))


def test_what_the_system_says_of_a_file_is_one_line(monkeypatch, capsys):
    def fail():
        raise PermissionError(13, "Permission denied", "a.jsonl")

    monkeypatch.setattr(main, "app", fail)
    assert error_of(monkeypatch, capsys) == "ascent: [Errno 13] Permission denied: 'a.jsonl'\n"


def test_an_error_ends_the_process_with_status_2():
    done = ascent_command("train", "rlvr", "--model", "m")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ascent: there is no option --model; a key is set as KEY=VALUE: model=m\n"


def test_each_problem_is_a_line(monkeypatch, capsys):
    def fail():
        raise ValueError("first\nsecond")

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit) as caught:
        main.run()
    assert caught.value.code == 2
    assert capsys.readouterr().err == "ascent: first\nascent: second\n"


def test_our_own_mistakes_keep_their_traceback(monkeypatch):
    def fail():
        raise AssertionError("broken invariant")

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(AssertionError, match="broken invariant"):
        main.run()
