"""A plan becomes objects, and the objects a run: the only place that knows every part of training from files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ascent import loop
from ascent.build.plan import Plan, resolve
from ascent.build.records import prepared
from ascent.checkpoints import rng
from ascent.checkpoints.resume import Found, newest, read_state
from ascent.checkpoints.save import Keep, save
from ascent.config.show import as_yaml
from ascent.config.validate import validate
from ascent.config.yaml_text import read as read_yaml
from ascent.data.render import Renderer
from ascent.data.sources import FileSource, once
from ascent.models import load as models
from ascent.models import tiny
from ascent.models.model import LanguageModel
from ascent.runs.environment import describe
from ascent.runs.folder import CHECKPOINTS, CONFIG, RunFolder, read_run
from ascent.runs.signals import Stop
from ascent.runs.terminal import Terminal
from ascent.runs.trackers import Fanout
from ascent.update.local import LocalLearner
from ascent.update.objective import Objective, objective_of
from ascent.update.optim import Adam
from ascent.update.reference import Reference
from ascent.update.schedule import Schedule

TINY = "tiny:"
Say = Callable[[str], None]
Batch = dict[str, Any]


@dataclass(frozen=True)
class Training:
    """Everything a run is made of, built and checked, nothing trained yet."""

    model: LanguageModel
    learner: LocalLearner
    objective: Objective
    source: loop.Source
    heldout: Sequence[Batch]
    notes: tuple[str, ...]


class WithReference:
    """A source whose batches also carry the reference's log-probs."""

    def __init__(self, source: FileSource, reference: Reference) -> None:
        self.source, self.reference = source, reference

    def next(self, step: int) -> list[Batch]:
        return [self.reference(batch) for batch in self.source.next(step)]

    def refresh(self, weights: Mapping[str, Any]) -> None:
        self.source.refresh(weights)

    def state(self) -> dict[str, Any]:
        return self.source.state()

    def load_state(self, state: dict[str, Any]) -> None:
        self.source.load_state(state)


def assemble(plan: Plan, folder: Path, *, model_folder: Path | None = None) -> Training:
    """Build every part of a run that learns from files; `model_folder` is the checkpoint's model when resuming."""
    config, row = plan.config, plan.row
    if row.source == "rollouts":
        raise ValueError(
            f"algorithm {row.name} learns from rollouts, which this version cannot sample yet; algorithms that learn "
            "from files are trained: ascent show algorithms lists them"
        )
    rng.seed(config.seed)
    model = load_policy(plan, folder, model_folder)
    renderer = Renderer(model.tokenizer, train_on=config.data.train_on if row.source == "examples" else "completion")
    train = prepared(config.data.train, config, row, renderer)
    source = FileSource(
        [train],
        batch_size=config.data.batch_size,
        tokens_per_microbatch=config.update.tokens_per_microbatch,
        max_tokens=config.data.max_tokens,
        seed=config.seed,
        shuffle=config.data.shuffle,
    )
    items = () if config.data.evaluate is None else prepared(config.data.evaluate, config, row, renderer).items
    budget, longest = config.update.tokens_per_microbatch, config.data.max_tokens
    heldout = once(items, tokens_per_microbatch=budget, max_tokens=longest) if items else []
    learner = LocalLearner(
        model,
        Schedule(config.update.learning_rate, config.update.schedule, config.update.warmup_steps, config.run.steps),
        adam=adam_of(plan),
        max_grad_norm=config.update.max_grad_norm,
    )
    notes = (*model.notes, *renderer.describe(), f"{len(train.items)} records from {config.data.train}")
    if "reference" not in row.needs:
        return Training(model, learner, objective_of(row), source, heldout, notes)
    reference = reference_of(plan, folder)
    everything = once(train.items, tokens_per_microbatch=budget, max_tokens=longest)
    fresh = reference.learn([*everything, *heldout])
    notes += (f"reference log-probs of {fresh} sequences computed, {len(reference.known)} known",)
    if row.source != "unpaired":  # its companions are made anew in every epoch
        reference.model = None
    return Training(
        model,
        learner,
        objective_of(row),
        WithReference(source, reference),
        [reference(each) for each in heldout],
        notes,
    )


def load_policy(plan: Plan, folder: Path, model_folder: Path | None = None) -> LanguageModel:
    """The model to train: from a checkpoint, as the recipe says, or a tiny one made here (`tiny:llama`)."""
    config = plan.config
    start = str(initial(config.model.policy, folder, config.seed))
    return models.load(
        start if model_folder is None else model_folder,
        head="scalar" if "score_head" in plan.row.needs else "tokens",
        dtype=config.model.dtype,
        device=device(),
        recompute=config.model.recompute,
        seed=config.seed,
    )


def reference_of(plan: Plan, folder: Path) -> Reference:
    """The frozen reference: the recipe's, or the policy as it was before the first step."""
    name = plan.config.model.reference or plan.config.model.policy
    frozen = models.load(
        str(initial(name, folder, plan.config.seed)),
        dtype=plan.config.model.dtype,
        device=device(),
        seed=plan.config.seed,
    )
    folder.mkdir(parents=True, exist_ok=True)
    return Reference(frozen, file=folder / "reference.safetensors")


def initial(name: str, folder: Path, seed: int) -> str | Path:
    """The recipe's model; a tiny one is made inside the run folder, from the seed alone."""
    if not name.startswith(TINY):
        return name
    made = folder / "initial"
    if not (made / "config.json").exists():
        tiny.create(made, family=name.removeprefix(TINY), seed=seed)
    return made


def adam_of(plan: Plan) -> Adam:
    update = plan.config.update
    return Adam(update.adam_beta1, update.adam_beta2, update.adam_eps, update.weight_decay)


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def train(plan: Plan, folder: Path, *, say: Say = print, header: str = "") -> int:
    """A new run in `folder`, from the first step to the last; returns the last step finished."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is not an empty folder, and a run never writes over another; name a new folder")
    training = assemble(plan, folder)
    text = header + as_yaml(plan.config)
    with RunFolder.create(folder, text, describe(devices=[device()]), say=say) as run:
        return _drive(plan, training, run, done=0, say=say)


def resume(folder: Path, *, say: Say = print) -> int:
    """Continue a run from its newest checkpoint that verifies, to the same bits; returns the last step finished."""
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder} is no run folder: it has no {CONFIG}; ascent runs lists the runs of a folder")
    plan = resolve(validate(read_yaml((folder / CONFIG).read_text(encoding="utf-8"), str(folder / CONFIG))))
    found = newest(folder / CHECKPOINTS)
    for line in found.lines() if found else ["no checkpoint was saved; starting from the first step"]:
        say(line)
    done, steps = (found.step if found else 0), plan.config.run.steps
    if done >= steps and read_run(folder).state == "finished":  # killed after its last save, a run has yet to end
        raise ValueError(
            f"{folder} is finished (step {done} of {steps}), so there is nothing to resume; to train further, raise "
            f"run.steps in {folder / CONFIG}"
        )
    training = assemble(plan, folder, model_folder=found.folder / "model" if found else None)
    with RunFolder.reopen(folder, done, describe(devices=[device()]), say=say) as run:
        if found is not None and not found.folder.is_dir():  # between looking and locking, another process went on
            raise ValueError(f"{found.folder} is gone: another process has continued {folder}; resume it again")
        return _drive(plan, training, run, done=done, say=say, found=found)


def _drive(plan: Plan, training: Training, run: RunFolder, *, done: int, say: Say, found: Found | None = None) -> int:
    settings = plan.config.run
    for note in training.notes:
        say(note)
    terminal = Terminal(settings.steps, done=done)
    parts = loop.Parts(
        source=training.source,
        trained=[loop.Trained("policy", training.learner, training.objective)],
        tracker=Fanout(run, [terminal], say=say),
        save=lambda step, state: _save(plan, training, run, step, state),
        evaluate=(lambda step: evaluated(training)) if training.heldout else None,
    )
    if found is not None:
        state = read_state(found.folder)
        loop.load_state(parts, state)
        rng.restore(state["rng"])
    schedule = loop.Schedule(settings.steps, settings.save_every, settings.evaluate_every)
    try:
        with Stop() as stop:
            last = loop.run(parts, schedule, done=done, stop=lambda: stop.requested)
    except BaseException as error:
        try:
            run.end("failed", done, f"{type(error).__name__}: {error}")
        except OSError as second:  # a full disk, most likely; the first error is the one to show
            say(f"the failure could not be noted in {run.path}: {second}")
        raise
    finally:
        terminal.close()
    stopped = last < settings.steps
    run.end("stopped" if stopped else "finished", last, f"asked by {stop.received}" if stopped else "")
    say(f"{'stopped after' if stopped else 'finished'} step {last} of {settings.steps}; the run is in {run.path}")
    return last


def evaluated(training: Training) -> dict[str, float]:
    """The loss and metrics on held-out data, without a gradient."""
    stats = training.learner.evaluate(training.heldout, training.objective)
    return {f"evaluate/{name}": tally.value() for name, tally in stats.items()}


def _save(plan: Plan, training: Training, run: RunFolder, step: int, state: loop.State) -> None:
    save(
        run.checkpoints,
        step,
        {**state, "rng": rng.capture()},
        {"model": training.model.save},
        keep=Keep(last=plan.config.run.keep),
    )
