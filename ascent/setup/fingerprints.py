"""Fingerprints of everything a run reads besides its recipe: models, data, the user's code, servers.

A name that means the newest checkpoint of a run is resolved once, at the start, and stays that checkpoint.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ascent.algorithms import TABLE
from ascent.checkpoints.manifest import check_weights, sha256
from ascent.config.changes import DATA, MODELS, flatten
from ascent.config.heldout import heldout_share
from ascent.data.load import files_of, parse_name
from ascent.data.schemas import RecordKind
from ascent.envs.registry import BUILT_IN as ENVS
from ascent.envs.tools import BUILT_IN as TOOLS
from ascent.models.adapters import chain
from ascent.models.locate import ADAPTER_CONFIG, SECONDS, check_hub, resolve
from ascent.plan.resolve import Plan
from ascent.plan.unused_keys import REWARD_MODEL
from ascent.rewards.registry import BUILT_IN as REWARDS
from ascent.rollouts.score import ENV
from ascent.setup.data import load_records
from ascent.setup.local_modules import local_files
from ascent.setup.objects import NO_OBJECTS, Objects, is_object
from ascent.setup.policy import TINY, initial
from ascent.setup.step_rewards import PROCESS_REWARD_MODEL, VERIFIER
from ascent.tasks.named import is_task
from ascent.tasks.reasoning import PREFIX

Kind = Literal["model", "data", "python", "file", "package", "server", "object"]
# What is read of a model's folder: weights, configuration, tokenizer, chat template, code that comes with it.
OF_A_MODEL = (".safetensors", ".json", ".jinja", ".model", ".txt", ".py")
# Rewards that Ascent itself has, beside those of the registry.
OURS = (VERIFIER, ENV, REWARD_MODEL, PROCESS_REWARD_MODEL)
SECRET = "token_file"  # it may be another one on every day
REVISION = "revision"
WORTH_SAYING = 1.0  # seconds of hashing


class InputName(NamedTuple):
    """An input as a recipe names it. After the first checkpoint nothing more is read of one that is `start_only`."""

    key: str
    name: str
    kind: Kind
    want: RecordKind | None = None
    start_only: bool = False


@dataclass(frozen=True)
class Input:
    """What a name stood for: where that is, and its content: names of files, or of what else there is, with a sha256
    or a version. Without any content it cannot be compared; `problem` says so where it could not be read."""

    key: str
    name: str
    at: str
    content: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    def record(self) -> dict[str, Any]:
        return {"key": self.key, "name": self.name, "at": self.at, "content": dict(self.content)}

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(repr(sorted(self.content.items())).encode()).hexdigest()


class HashProgress:
    """Hashes files, each once and several at a time, and knows how much that was."""

    def __init__(self) -> None:
        self._known: dict[Path, str] = {}
        self.bytes, self.seconds = 0, 0.0

    def __call__(self, files: Mapping[str, Path]) -> dict[str, str]:
        begun = time.perf_counter()
        new = list(dict.fromkeys(path for path in files.values() if path not in self._known))
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
            self._known |= dict(zip(new, threads.map(sha256, new), strict=True))
        self.bytes += sum(path.stat().st_size for path in new)
        self.seconds += time.perf_counter() - begun
        return {name: self._known[path] for name, path in files.items()}

    def words(self) -> list[str]:
        if self.seconds < WORTH_SAYING:
            return []
        speed = self.bytes / self.seconds
        return [
            f"{self.bytes / 1e6:.0f} MB of inputs hashed in {self.seconds:.1f} s ({speed / 1e6:.0f} MB/s)"
        ]


def find_inputs(plan: Plan) -> list[InputName]:
    """Every input of a run, by the key of the recipe that names it."""
    values, row = flatten(plan.config), plan.row
    found = [
        InputName(key, values[key], "model", None, _start_only(plan, key))
        for key in MODELS
        if values.get(key)
    ]
    want: Any = "prompts" if row.samples else row.source
    mixed = [f"data.mix[{place}].use" for place in range(len(plan.config.data.mix))]
    for key in (*DATA, *mixed):
        if values.get(key) and heldout_share(values[key]) is None:
            kind: Kind = "object" if is_object(values[key]) else "data"
            found.append(InputName(key, values[key], kind, "examples" if key in DATA[2:] else want))
    if plan.config.algorithm not in TABLE:
        found.append(_code("algorithm", plan.config.algorithm, "algorithm"))
    found += [each for key, value in _values(values) for each in _chosen(key, value, values)]
    return found


def _start_only(plan: Plan, key: str) -> bool:
    """An adapter needs the model beside it for good, and so does a reference; else the checkpoint has all of it."""
    settings, needs = plan.config.model, plan.row.needs
    if settings.lora is not None or key not in ("model.policy", "model.critic_from"):
        return False
    refers = needs & {"reference", "reference_samples", "opponent_samples", "optimal_values"}
    return key == "model.critic_from" or settings.reference is not None or not refers


def _values(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every word in the sections of rewards and of the environment."""
    for key, value in values.items():
        if key.startswith(("rewards[", "env.")):
            several = (
                {f"{key}[{place}]": each for place, each in enumerate(value)}
                if isinstance(value, list)
                else {}
            )
            yield from (
                (at, each)
                for at, each in (several or {key: value}).items()
                if isinstance(each, str)
            )


def _chosen(key: str, value: str, values: Mapping[str, Any]) -> Iterator[InputName]:
    """What a value of such a section depends on; nothing where it is a name of Ascent's own, or just a word."""
    section, _, last = key.rpartition(".")
    if last == "use" or key.startswith("env.tools["):
        kind, ours = (
            ("tool", TOOLS)
            if last != "use"
            else ("env", ENVS)
            if section == "env"
            else ("reward", REWARDS)
        )
        if is_object(value):
            yield InputName(key, value, "object")
        elif value not in ours and value not in OURS:
            yield _code(key, value, kind)
    elif last == "url":
        yield InputName(key, value, "server")
    elif ".py:" in value and os.path.isfile(os.path.expanduser(value.rpartition(":")[0])):
        yield InputName(key, value, "python")
    elif last != SECRET and os.path.isfile(os.path.expanduser(value)):
        yield InputName(key, value, "file")
    elif (last == "model" and values.get(f"{section}.use") == PROCESS_REWARD_MODEL) or _is_model(
        value
    ):
        yield InputName(key, value, "model")


def _is_model(value: str) -> bool:
    folder = os.path.expanduser(value)
    marks = ("config.json", ADAPTER_CONFIG)
    return any(os.path.isfile(os.path.join(folder, each)) for each in marks) or os.path.isdir(
        os.path.join(folder, "checkpoints")
    )


def _code(key: str, use: str, kind: str) -> InputName:
    """`file.py:NAME`, or an entry point of another package."""
    return (
        InputName(key, use, "python")
        if ".py:" in use
        else InputName(key, f"{kind} {use}", "package")
    )


class FingerprintReader:
    """Finds and hashes inputs. `before` are those that were recorded: a model stays at the place that it had then."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        before: Mapping[str, Input] | None = None,
        objects: Objects = NO_OBJECTS,
    ) -> None:
        self.folder, self.seed, self.before, self.objects = folder, seed, before or {}, objects
        self.hashing = HashProgress()

    def __call__(self, each: InputName) -> Input:
        read = {
            "model": self._model,
            "data": self._data,
            "python": self._python,
            "file": self._file,
            "package": _package,
            "object": self._object,
            "server": lambda each: Input(each.key, each.name, each.name),
        }[each.kind]
        try:
            return read(each)
        except (ValueError, OSError) as error:  # at the start whoever uses it says so, too
            return Input(each.key, each.name, each.name, problem=str(error))

    def _of_files(self, each: InputName, at: Path, files: Mapping[str, Path]) -> Input:
        return Input(each.key, each.name, str(at.absolute()), self.hashing(files))

    def _model(self, each: InputName) -> Input:
        before = self.before.get(each.key)
        before = before if before is not None and before.name == each.name else None
        if each.name.startswith(TINY) or is_object(each.name):
            place: Path | str = initial(each.name, self.folder, self.seed, self.objects)
        elif before is not None and REVISION not in before.content and Path(before.at).is_dir():
            place = Path(before.at)
        else:
            place = resolve(each.name)
        if isinstance(place, str):
            return _of_the_hub(each, before)
        files: dict[str, Path] = {}
        for depth, folder in enumerate(chain(place)):
            if isinstance(folder, Path):
                read = [
                    path
                    for path in sorted(folder.iterdir())
                    if path.suffix in OF_A_MODEL and path.is_file()
                ]
                check_weights(folder, self.hashing({path.name: path for path in read}))
                files |= {f"{'base/' * depth}{path.name}": path for path in read}
        return self._of_files(each, place, files)

    def _data(self, each: InputName) -> Input:
        if not is_task(each.name):
            files = {shown: path for path, shown in files_of(each.name)}
            at = (
                Path(os.path.commonpath([path.absolute() for path in files.values()]))
                if files
                else Path(each.name)
            )
            found, limit = self._of_files(each, at, files), parse_name(each.name).limit
            return (
                found
                if limit is None
                else replace(found, content={**found.content, "rows": str(limit)})
            )
        if each.name.startswith(PREFIX):
            content = {"reasoning-gym": importlib.metadata.version("reasoning-gym")}
        else:
            records = load_records(each.name, each.want, seed=self.seed).records
            content = {"records": hashlib.sha256(repr(records).encode()).hexdigest()}
        return Input(each.key, each.name, "a built-in task", content)

    def _python(self, each: InputName) -> Input:
        files = local_files(Path(each.name.rpartition(":")[0]))
        names = [os.path.relpath(path, files[0].parent) for path in files]
        return self._of_files(each, files[0], dict(zip(names, files, strict=True)))

    def _object(self, each: InputName) -> Input:
        return Input(each.key, each.name, "a Python object", self.objects[each.name].content)

    def _file(self, each: InputName) -> Input:
        path = Path(each.name).expanduser()
        return self._of_files(each, path, {path.name: path})


def _package(each: InputName) -> Input:
    kind, _, name = each.name.partition(" ")
    group = [
        entry
        for entry in importlib.metadata.entry_points(group=f"ascent.{kind}s")
        if entry.name == name
    ]
    packages = [entry.dist for entry in group if entry.dist is not None]
    return Input(
        each.key,
        each.name,
        "an installed package",
        {package.name: package.version for package in packages},
    )


def _of_the_hub(each: InputName, before: Input | None) -> Input:
    """A model of the hub, by its revision: the one that was recorded, as long as there is a copy of it here."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    if before is not None and REVISION in before.content:
        try:
            kept = snapshot_download(
                each.name, revision=before.content[REVISION], local_files_only=True
            )
            return replace(before, at=str(kept))
        except LocalEntryNotFoundError:
            pass
    place = check_hub(each.name)
    if isinstance(place, Path):
        return Input(each.key, each.name, str(place), {REVISION: place.name})
    try:
        return Input(
            each.key,
            each.name,
            each.name,
            {REVISION: str(HfApi().model_info(place, timeout=SECONDS).sha)},
        )
    except HfHubHTTPError as error:
        return Input(each.key, each.name, each.name, problem=str(error).splitlines()[0])


def difference(was: Input | None, now: Input | None) -> str:
    """What is another than before, in words; empty where nothing is, or where nothing could be compared."""
    if was is None:
        assert now is not None
        return f"{now.key} {now.name} is new: the run had no such input"
    if now is None:
        return f"{was.key} {was.name} is gone from the recipe"
    if now.problem and was.content:
        return f"{now.key} {now.name} cannot be read any more (it was {was.at}): {now.problem}{_elsewhere(was)}"
    names = [
        name
        for name in {**was.content, **now.content}
        if was.content.get(name) != now.content.get(name)
    ]
    if not names:
        return ""
    told = [
        f"{name} {_short(was.content.get(name))} -> {_short(now.content.get(name))}"
        for name in names[:3]
    ]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    moved = "" if was.at == now.at else f", which was {was.at}{_elsewhere(was)}"
    return f"{now.key} {now.name} has another content ({', '.join(told)}{more}) at {now.at}{moved}"


def _elsewhere(was: Input) -> str:
    """Where to resume if a relative path means another file here than where the run was started."""
    at = Path(was.at)
    for name in (
        was.name,
        was.name.rpartition(":")[0],
        was.name.partition("@")[0],
    ):  # file.py:NAME, folder@split
        base = Path(was.at.removesuffix(name))
        if name and base / name == at and base.is_absolute() and base != Path.cwd() and at.exists():
            return f"; {name} is read from the current folder, and the run was started in {base}: resume it there"
    return ""


def _short(mark: str | None) -> str:
    return "(none)" if mark is None else mark[:12]


def unchecked(inputs: Sequence[Input]) -> list[str]:
    """What nobody can compare, in words."""
    return [
        f"{each.key} {each.name} cannot be checked: what it says may be another today"
        for each in inputs
        if not each.content
    ]
