"""Runs in processes of their own, which can be killed: how to start one, what it does when told to fail, what is left.

Children are forked by a server that has imported everything already, so that hundreds of them take a minute.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import ascent.runs.folder
from ascent.api import drive as driving
from ascent.api import train as training
from ascent.checkpoints import disk
from ascent.config.load import nest_keys
from ascent.config.validate import validate
from ascent.config.yaml_text import read
from ascent.data.sources import FileSource
from ascent.plan.resolve import resolve

STEPS, SAVED_EVERY, EPOCH = (
    6,
    2,
    2.5,
)  # 20 records in batches of 8: step 3 begins in one epoch and ends in the next
DATA = {"sft": "sort_digits", "reward_model": "style", "dpo": "style"}
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

Watcher = Callable[[str, Path], None]
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["tests.end_to_end.warm"])


# Runs that sample: several updates a step, so that a kill also falls between them. Each is a row and what it changes.
# rlhf: a critic of its own that learns alone first, a KL coefficient that moves, values where completions are cut.
# ptx: pretraining text in every update, of a stream of its own; the value head's trunk is the policy's.
# lagging: rollouts that wait a step or two, in the checkpoint too.
# partial: some of them unfinished, with weights of several versions; lengths differ, so some are in every checkpoint.
# talking: several turns, whose replies come in another order every time.
# online_dpo, xpo: pairs of fresh answers, some of them the reference's; prompts without one are replaced.
# nash_md: every answer has an opponent, which another sampler draws from the policy's weights and the reference's.
SAMPLED: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {"rollouts.group_size": 4}),
    "ppo": ("ppo", {"model.critic": "head"}),
    "rlhf": (
        "ppo",
        {
            "update.critic_learning_rate": 1e-2,
            "update.critic_warmup_steps": 1,
            "rollouts.truncated_reward": "bootstrap",
            "cells.reward_shaping.eos_replace": False,
            "cells.kl_controller": {"use": "ziegler_sequence", "horizon": 16},
        },
    ),
    "ptx": (
        "instructgpt",
        {"model.critic": "head", "data.pretraining": "arithmetic:20", "data.batch_size": 3},
    ),
    "online_dpo": ("online_dpo", {"rollouts.group_size": 3, "rollouts.dynamic_sampling_tries": 2}),
    "xpo": ("xpo", {"rollouts.dynamic_sampling_tries": 2}),
    "nash_md": ("nash_md", {"rollouts.group_size": 2, "update.epochs": 1}),  # it has no ratio
    "lagging": ("ppo_penalty", {"rollouts.max_staleness": 2}),
    "partial": (
        "grpo",
        {
            "rollouts.group_size": 2,
            "rollouts.max_staleness": 2,
            "rollouts.partial_rollouts": True,
            "rollouts.max_new_tokens": 200,
            "update.tokens_per_microbatch": 512,
        },
    ),
    "talking": (
        "grpo",
        {
            "rollouts.group_size": 4,
            "rollouts.max_new_tokens": 60,
            "update.tokens_per_microbatch": 1024,
            "env": {
                "use": f"{Path(__file__).with_name('rewarded.py')}:again",
                "max_turns": 3,
                "max_tokens": 200,
            },
        },
    ),
}
REWARD = f"{Path(__file__).with_name('rewarded.py')}:even"


def recipe(row: str, *, keep: int = 2) -> str:
    if row in SAMPLED:
        algorithm, changes = SAMPLED[row]
        settings = {
            "algorithm": algorithm,
            "model.policy": "tiny:llama",
            "data.train": "sort_digits:10",
            "rewards": [{"use": REWARD}],
            "rollouts.prompts_per_step": 4,
            "rollouts.max_new_tokens": 6,
            "update.learning_rate": 3e-3,
            "update.epochs": 2,
            "update.minibatches": 2,
            "update.tokens_per_microbatch": 256,
            "run.steps": STEPS,
            "run.save_every": SAVED_EVERY,
            "run.keep": keep,
        }
        return json.dumps(nest_keys({**settings, **changes}))
    return f"""
algorithm: {row}
model: {{policy: 'tiny:llama'}}
data: {{train: '{DATA[row]}:20', batch_size: 8, max_tokens: 128}}
update: {{learning_rate: 3.0e-3, schedule: linear, warmup_steps: 2, tokens_per_microbatch: 512}}
run: {{steps: {STEPS}, save_every: {SAVED_EVERY}, keep: {keep}}}
"""


def start(
    folder: Path, text: str | None = None, fault: Callable[..., None] | None = None, *given: Any
) -> Any:
    """A process that begins the run of a recipe, or resumes the one in `folder`, after installing `fault(*given)`."""
    child: ForkServerProcess = _server.Process(target=_work, args=(folder, text, fault, given))
    child.start()
    return child


def finish(
    folder: Path, text: str | None = None, fault: Callable[..., None] | None = None, *given: Any
) -> int:
    """The same, waited for: its exit code, or minus the signal that ended it."""
    return ended(start(folder, text, fault, *given))


def ended(child: Any) -> int:
    child.join(120)
    code = child.exitcode
    if code is None:
        child.kill()
        raise AssertionError("a child did not end within two minutes")
    child.close()
    return int(code)


def said(folder: Path) -> str:
    """Everything the run's processes printed."""
    return log_of(folder).read_text(encoding="utf-8")


def log_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.log")


def _work(
    folder: Path, text: str | None, fault: Callable[..., None] | None, given: tuple[Any, ...]
) -> None:
    log_to(log_of(folder))
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    ascent.runs.folder.draw = lambda *_, **__: None  # the picture takes longer than the training
    if fault is not None:
        fault(*given)
    if text is None:
        training.resume_run(folder)
    else:
        training.train_plan(resolve(validate(read(text, "recipe"))), folder)


# What a child does when told to fail.


def full_disk(step: int, kind: str, name: str) -> None:
    """The disk is full at one change while the checkpoint of `step` is saved."""

    def watch(found: str, path: Path) -> None:
        if (found, path.name) == (kind, name) and {str(step), f".{step}.writing"} & set(path.parts):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    disk.watcher = watch


def wait_before(step: int, go: Path) -> None:
    """Before the checkpoint of `step` gets its name, wait until the file `go` is there."""

    def watch(kind: str, path: Path) -> None:
        if (kind, path.name) == ("rename", str(step)):
            go.with_name("waiting").touch()
            wait_for(go.exists)

    disk.watcher = watch


def wait_in_step(step: int, go: Path) -> None:
    """In the middle of `step`, before its batches are there, wait until the file `go` is there."""
    give = FileSource.next

    def waiting(self: FileSource, at: int) -> Any:
        if at == step:
            go.with_name("waiting").touch()
            wait_for(go.exists)
        return give(self, at)

    FileSource.next = waiting  # type: ignore[method-assign]


def kill_after(step: int) -> None:
    """Kill this process as soon as the checkpoint of `step` is saved."""
    save = driving.save

    def last(root: Path, at: int, *parts: Any, **options: Any) -> Any:
        saved = save(root, at, *parts, **options)
        if at == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return saved

    driving.save = last


def kill_at_change(number: int, folder: Path) -> None:
    """Kill this process at its n-th change below `folder`."""
    _kill_at(number, folder)


def log_to(path: Path) -> None:
    """Print to another file than the run's other processes."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)


def kill_at_every_change(step: int, wrecks: Path) -> None:
    """Saving `step` is done by one forked copy of this process after the other: the n-th is killed at its n-th change.

    What each leaves of the run folder is copied to `wrecks`/n, and the folder is put back as it was.
    """
    save = driving.save

    def forking(root: Path, at: int, *parts: Any, **options: Any) -> Any:
        if at != step:
            return save(root, at, *parts, **options)
        before = wrecks / "before"
        shutil.copytree(root, before)
        for number in itertools.count(1):
            if not _killed(number, root, lambda: save(root, at, *parts, **options)):
                os._exit(0)
            shutil.copytree(root.parent, wrecks / str(number))
            shutil.rmtree(root)
            shutil.copytree(before, root)

    wrecks.mkdir()
    driving.save = forking  # type: ignore[assignment]


def _killed(number: int, root: Path, save: Callable[[], Any]) -> bool:
    child = os.fork()
    if child == 0:
        _kill_at(number, root)
        save()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or status == 0, status
    return killed


def _kill_at(number: int, root: Path) -> None:
    """SIGKILL this process at its n-th change below `root`.

    Changes are those that checkpoints announce (every write, fsync and rename of theirs), and beyond them what Python
    itself reports: each file that transformers opens for writing, each file and folder that is made or deleted.
    """
    seen = 0

    def change(kind: str, path: Path) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            print(f"killed at {number}: {kind} {path.name}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES or (
            event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
        ):
            path = arguments[0]
            if isinstance(path, str | Path) and (
                Path(path).is_relative_to(root) or not Path(path).is_absolute()
            ):
                change(event, Path(path))

    disk.watcher = change
    sys.addaudithook(hear)


# What is left.


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "waited a minute in vain"
        time.sleep(0.002)


def steps_logged(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def starts(folder: Path) -> int:
    """How many processes have opened the run folder; each drops first what was logged after its checkpoint."""
    path = folder / "environment.json"
    return (
        len(json.loads(path.read_text()))
        if (folder / "config.yaml").exists() and path.exists()
        else 0
    )


def history(folder: Path) -> list[dict[str, Any]]:
    """The metrics of every whole line, without times."""
    path = folder / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [
        {name: value for name, value in json.loads(line).items() if not name.startswith("time")}
        for line in lines
    ]


def outcome(folder: Path) -> dict[str, Any]:
    """The last checkpoint's files with their sha256 (weights, moments, data position, random states), the history."""
    last = json.loads((folder / f"checkpoints/{STEPS}/manifest.json").read_text())
    weights = (folder / f"checkpoints/{STEPS}/model/model.safetensors").read_bytes()
    return {
        "weights": hashlib.sha256(weights).hexdigest(),
        "files": last["files"],
        "metrics": history(folder),
    }


def digest(folder: Path) -> str:
    """A hash of all names and contents below a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        found.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return found.hexdigest()


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [name for name in one if one[name] != other[name]]
