"""A step of a run again, bit for bit, with everything captured: `ascent.replay`, `ascent.bisect`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ascent import loop
from ascent.api.input_changes import check_inputs, recipe_at
from ascent.api.objects import as_keys, objects_again
from ascent.api.train import Overrides, assemble, override_strings
from ascent.checkpoints import manifest, rng
from ascent.checkpoints.manifest import CheckpointError
from ascent.checkpoints.resume import read_state
from ascent.checkpoints.save import save, steps_in
from ascent.config import changes
from ascent.config.changes import flatten
from ascent.config.load import merge_configs
from ascent.config.validate import validate
from ascent.plan.load import load_config
from ascent.plan.resolve import Plan, resolve
from ascent.runs import environment
from ascent.runs.folder import CHECKPOINTS, CONFIG, Run, read_run
from ascent.runs.jsonl import encode_line, replace_file
from ascent.setup.offline import Training
from ascent.setup.optimal_values import FILE as OPTIMUM
from ascent.setup.policy import INITIAL, REFERENCE, device
from ascent.update.capture import CapturingLearner, UpdateRecord
from ascent.update.learner import LocalLearner, fingerprint

REPLAYS = "replays"  # the folder of a run that replays are written to
NEVER = 10**9
# What a step takes is not reproduced, and evaluation is no part of a step.
NOT_COMPARED = ("time/", "eval/", "timestamp")
_CONDITION = re.compile(
    r"\s*(?P<name>[\w/<>.-]+?)\s*(?P<sign><=|>=|==|!=|<|>)\s*(?P<bound>[-+.\w]+)\s*"
)
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


@dataclass(frozen=True)
class ReplayedStep:
    """A step again. `changed` are the keys that were changed on purpose.

    `differing` maps the metrics that are not what the run logged, bit for bit, to (logged, replayed); without `changed`
    it is empty. `same_weights` compares with the run's own checkpoint of this step, None where it kept none. `rollouts`
    are those of the step (samples.jsonl has their format), `updates` its optimizer steps. `not_promised` says why the
    bits may differ all the same: another device, other versions, several ranks. `file` holds all of it.
    """

    run: str
    step: int
    checkpoint: int
    changed: list[str]
    metrics: dict[str, float]
    differing: dict[str, tuple[float | None, float | None]]
    same_weights: bool | None
    rollouts: list[dict[str, Any]]
    updates: list[UpdateRecord]
    not_promised: list[str]
    file: str

    @property
    def exact(self) -> bool:
        """Whether this was the run's own step, as far as the run recorded it."""
        return not self.differing and self.same_weights is not False


@dataclass(frozen=True)
class Bisection:
    """The first step at which a condition held; `before` is the metric's last value before it, None for none."""

    name: str
    step: int
    value: float
    before: float | None
    replay: ReplayedStep


def replay(
    run: str | Path,
    step: int,
    overrides: Overrides = (),
    *,
    data: Any = None,
    eval_data: Any = None,
    rewards: Any = None,
    env: Any = None,
    out: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> ReplayedStep:
    """Take a step of a run again, bit for bit, and capture everything.

    run: the run folder; it is only read, apart from `out`.
    step: the step. It starts from the newest checkpoint before it; steps between the two are trained again first.
    overrides: keys to change for this step alone, as for `ascent.train`: what would have happened? A key that the saved
        state contradicts is refused.
    data, eval_data, rewards, env: the objects that the run was started with, if it was.
    out: the JSON file to write; by default RUN/replays/STEP.json, or STEP-changed.json with overrides.
    say: receives notes, one line each.

    Returns a `ReplayedStep`: rollouts, and of each optimizer step the loss terms with their gradient norms, and of each
    sequence the per-token log-probs, ratios and advantages and its contribution to the gradient.

        found = ascent.replay("runs/mine", 40, {"update.learning_rate": 1e-6})
        found.metrics["policy/update_kl"], found.updates[0].terms
    """
    folder, source = Path(run), read_run(Path(run))
    logged = {int(each["step"]): each for each in source.metrics}
    if step < 1 or step not in logged:
        raise ValueError(
            f"step={step}, but {folder} has trained steps 1 to {max(logged, default=0)}; give one of them"
        )
    given = as_keys(data=data, eval_data=eval_data, rewards=rewards, env=env)
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        _link_made(folder, work)
        base = resolve(validate(recipe_at(folder, step)))
        base = replace(base, objects=objects_again(base.config, given, folder))
        before = _checkpoint_before(folder, step)
        began = 0 if before is None else int(before.name)
        base, _ = check_inputs(
            base, folder, step - 1, started=before is not None, accept=False, say=lambda line: None
        )
        not_promised = why_bits_may_differ(source, base)
        for reason in not_promised:
            say(f"the bits may differ from the run's: {reason}")
        if began < step - 1:
            _refuse_changed_between(folder, began, step)
            say(f"training steps {began + 1} to {step - 1} again, from {_origin(before)}")
            before = _train_up_to(base, work, before, began, step - 1)
        plan, changed = _override(base, overrides)
        metrics, updates, records, weights = _captured(plan, work, before, step)
    differing = _differing(logged[step], metrics)
    own = folder / CHECKPOINTS / str(step)
    same = None if changed or not _valid(own) else _saved_weights(own) == weights
    path = (
        Path(out)
        if out is not None
        else folder / REPLAYS / f"{step}{'-changed' if changed else ''}.json"
    )
    found = ReplayedStep(
        str(folder),
        step,
        began,
        changed,
        metrics,
        differing,
        same,
        records,
        updates,
        not_promised,
        str(path),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, encode_line(asdict(found)))
    return found


def bisect(
    run: str | Path,
    when: str,
    *,
    consecutive: int = 1,
    out: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> Bisection:
    """Find the step at which a metric first went wrong, and replay it.

    run: the run folder.
    when: NAME SIGN NUMBER, such as 'reward/mean < 0.1'; signs are < <= > >= == and !=.
    consecutive: how many logged values in a row must meet the condition; the first of them is the step.
    out, say: as for `ascent.replay`.

    Returns a `Bisection` with the step, the values around it and the `ReplayedStep`.

        ascent.bisect("runs/mine", "policy/entropy > 3").replay.updates[0].sequences
    """
    name, step, value, before = first_step(read_run(Path(run)), when, consecutive=consecutive)
    say(
        f"{name} is {value:.4g} at step {step}"
        + (f", {before:.4g} before" if before is not None else "")
    )
    return Bisection(name, step, value, before, replay(run, step, out=out, say=say))


def first_step(
    run: Run, when: str, *, consecutive: int = 1
) -> tuple[str, int, float, float | None]:
    """(metric, step, value, value before) of the first step from 1 on that meets the condition."""
    match = _CONDITION.fullmatch(when)
    try:
        bound = float(match["bound"]) if match else 0.0
    except ValueError:
        match = None
    if match is None:
        raise ValueError(
            f"when={when!r} is no condition; write NAME SIGN NUMBER, such as 'reward/mean < 0.1'"
        )
    if consecutive < 1:
        raise ValueError(f"consecutive={consecutive}; it must be at least 1")
    name, holds = match["name"], _SIGNS[match["sign"]]
    curve = [
        (int(each["step"]), each[name])
        for each in run.metrics
        if name in each and each["step"] >= 1
    ]
    if not curve:
        known = sorted({key for each in run.metrics for key in each} - {"step", "timestamp"})
        raise ValueError(f"{name} was not logged by {run.path}; it has {', '.join(known)}")
    met = [holds(value, bound) for _, value in curve]
    for place in range(len(curve) - consecutive + 1):
        if all(met[place : place + consecutive]):
            step, value = curve[place]
            return name, step, value, curve[place - 1][1] if place else None
    values = [value for _, value in curve]
    raise ValueError(
        f"{when} never held in {run.path}: {name} is between {min(values):.4g} and {max(values):.4g}"
    )


def why_bits_may_differ(run: Run, plan: Plan) -> list[str]:
    """A sentence for each difference between what trained the run and what replays it that may change bits; and one
    where bits are not even promised to be the same twice."""
    settings, here, now = flatten(plan.config), device(), environment.describe(devices=[device()])
    found = []
    if here != "cpu" and settings.get("model.arithmetic") != "exact":
        found.append(f"this is {here}, where they are promised with exact arithmetic only")
    if here == "cpu" and plan.config.model.dtype != "float32":
        found.append(
            f"model.dtype={plan.config.model.dtype}; on a CPU they are promised in float32"
        )
    for start in run.environment:
        there, ranks = start["hardware"]["devices"], start["hardware"].get("ranks", 1)
        if there != [here]:
            found.append(f"the run was trained on {', '.join(there)}, and this is {here}")
        if ranks > 1:
            found.append(
                f"the run was trained by {ranks} ranks, whose sums have another order than those of one"
            )
        found += environment.differences(start, now)
    return list(dict.fromkeys(found))


def _link_made(folder: Path, work: Path) -> None:
    """Let assembling find what it once made in the run folder, and write nothing there."""
    for name in (INITIAL, REFERENCE, OPTIMUM):
        if (folder / name).exists():
            (work / name).symlink_to((folder / name).absolute())


def _checkpoint_before(folder: Path, step: int) -> Path | None:
    """The newest valid checkpoint before a step; None: the start of the run."""
    earlier = [
        folder / CHECKPOINTS / str(each) for each in steps_in(folder / CHECKPOINTS) if each < step
    ]
    return next((each for each in reversed(earlier) if _valid(each)), None)


def _valid(checkpoint: Path) -> bool:
    try:
        manifest.verify(checkpoint)
    except (CheckpointError, OSError):
        return False
    return True


def _origin(checkpoint: Path | None) -> str:
    return "the start" if checkpoint is None else f"checkpoint {checkpoint.name}"


def _refuse_changed_between(folder: Path, began: int, step: int) -> None:
    now = flatten(validate(recipe_at(folder, step)))
    for each in range(began + 1, step):
        found = changes.find_changes(flatten(validate(recipe_at(folder, each))), now)
        if found:
            raise ValueError(
                f"{folder} changed {found[0].key} between step {each} and step {step}, and the newest checkpoint "
                f"before that is of step {began}; only steps up to {each} can be replayed from it"
            )


def _override(plan: Plan, overrides: Overrides) -> tuple[Plan, list[str]]:
    """The plan with keys changed for one step, and the changes as words."""
    words = list(override_strings(overrides))
    if not words:
        return plan, []
    recipe = plan.config.model_dump(mode="json", exclude_unset=True)
    changed = resolve(load_config(merge_configs({}, recipe), words))
    edits = changes.find_changes(flatten(plan.config), flatten(changed.config))
    changes.check_changes(edits, flatten(plan.config), f"the run's {CONFIG}")
    return replace(changed, objects=plan.objects, inputs=plan.inputs), words


def _started(
    plan: Plan, work: Path, checkpoint: Path | None, stack: ExitStack
) -> tuple[Training, loop.LoopParts]:
    training = assemble(
        plan, work, model_folder=None if checkpoint is None else checkpoint / "model"
    )
    stack.callback(training.close)
    parts = loop.LoopParts(training.source, training.trained, _Metrics(), lambda step, state: None)
    if checkpoint is not None:
        state = read_state(checkpoint)
        loop.load_state(training.source, training.trained, state)
        rng.restore(state["rng"])
    return training, parts


def _train_up_to(plan: Plan, work: Path, checkpoint: Path | None, began: int, step: int) -> Path:
    """A temporary checkpoint of `step`."""
    with ExitStack() as stack:
        training, parts = _started(plan, work, checkpoint, stack)

        def write(at: int, state: loop.State) -> None:
            folders = {"model": training.model.save, **training.saved}
            save(work / CHECKPOINTS, at, {**state, "rng": rng.capture()}, folders)

        loop.run(replace(parts, save=write), loop.Schedule(step, NEVER, NEVER), done=began)
    return work / CHECKPOINTS / str(step)


def _captured(
    plan: Plan, work: Path, checkpoint: Path | None, step: int
) -> tuple[dict[str, float], list[UpdateRecord], list[dict[str, Any]], dict[str, dict[str, int]]]:
    """Metrics, updates, rollouts and the fingerprints of all weights after the step."""
    updates: list[UpdateRecord] = []
    with ExitStack() as stack:
        training, parts = _started(plan, work, checkpoint, stack)
        learners: dict[str, LocalLearner] = {each.name: each.learner for each in training.trained}  # type: ignore[misc]
        trained = [
            each._replace(learner=CapturingLearner(each.name, learners[each.name], updates))
            for each in parts.trained
        ]
        tracker = _Metrics()
        schedule = loop.Schedule(step, NEVER, NEVER)
        loop.run(replace(parts, trained=trained, tracker=tracker), schedule, done=step - 1)
        records = (
            [] if training.samples is None else [dict(each) for each in training.samples().records]
        )
        weights = {name: fingerprint(each.optimizer.weights) for name, each in learners.items()}
    return dict(tracker.last), updates, records, weights


class _Metrics:
    """Implements `protocols.Tracker`: the last metrics."""

    last: Mapping[str, float] = {}

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.last = metrics

    def close(self) -> None:
        """Nothing to close."""


def _differing(
    logged: Mapping[str, float], now: Mapping[str, float]
) -> dict[str, tuple[float | None, float | None]]:
    names = [
        name
        for name in dict.fromkeys((*logged, *now))
        if not name.startswith(NOT_COMPARED) and name != "step"
    ]
    pairs = {name: (logged.get(name), now.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if repr(pair[0]) != repr(pair[1])}


def _saved_weights(checkpoint: Path) -> dict[str, dict[str, int]]:
    return {name: each["weights"] for name, each in read_state(checkpoint)["learners"].items()}
