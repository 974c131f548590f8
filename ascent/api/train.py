"""Train from a recipe, or resume a run: `ascent.train`, `ascent.resume`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from ascent import __version__
from ascent.api.callbacks import Callbacks
from ascent.api.drive import Say, close, drive, restore
from ascent.api.input_changes import check_inputs, inputs_text, record_inputs
from ascent.api.launch import (
    ray_options,
    refuse_objects,
    resume_in_processes,
    resume_on_ray,
    train_in_processes,
    train_on_ray,
)
from ascent.api.objects import (
    Collector,
    as_json,
    as_keys,
    check_arguments,
    hint_arguments,
    objects_again,
)
from ascent.checkpoints import rng
from ascent.checkpoints.resume import newest
from ascent.config.changes import flatten, flatten_mapping
from ascent.config.load import nest_keys, parse_overrides
from ascent.config.show import as_yaml
from ascent.config.validate import validate
from ascent.config.yaml_text import read as read_yaml
from ascent.models.dtype import describe_slow_dtype
from ascent.parallel.distributed import process_group
from ascent.parallel.ranks import SINGLE, Layout, Ranks
from ascent.plan.load import load_config
from ascent.plan.resolve import Plan, resolve
from ascent.runs import trackers
from ascent.runs.claim import FolderClaim, next_folder
from ascent.runs.environment import describe
from ascent.runs.folder import (
    CHECKPOINTS,
    CONFIG,
    Run,
    RunFolder,
    UnwrittenFolder,
    read_run,
    state_of,
)
from ascent.runs.lock import Lock
from ascent.runs.sample_log import SampleBatch
from ascent.setup import evaluation, sample_records
from ascent.setup.arithmetic import with_arithmetic
from ascent.setup.data import refuse_absent_files, with_steps
from ascent.setup.objects import refuse_missing
from ascent.setup.offline import Training, assemble_offline
from ascent.setup.optimal_values import FILE as OPTIMUM
from ascent.setup.policy import INITIAL, REFERENCE, device
from ascent.setup.prompt_overlap import prompt_overlap
from ascent.setup.rewards import names_of
from ascent.setup.rl import RLSetup

# What assembling may leave in a folder before there is a run in it.
LEFTOVERS = (INITIAL, REFERENCE, f".{REFERENCE}.writing", OPTIMUM, f".{OPTIMUM}.writing")
OVERRIDE = "command line"  # the origin of a value that was set on top of the recipe
Recipe = str | Path | Mapping[str, Any] | Plan
Overrides = Sequence[str] | Mapping[str, Any]


@hint_arguments
def train(
    recipe: Recipe,
    overrides: Overrides = (),
    *,
    run: str | Path | None = None,
    model: Any = None,
    tokenizer: Any = None,
    data: Any = None,
    eval_data: Any = None,
    rewards: Any = None,
    env: Any = None,
    callbacks: Any = (),
    processes: int = 1,
    layout: Layout = "auto",
    ray: bool = False,
    samplers: int = 0,
    cpus: float = 1.0,
    gpus: float | None = None,
    reward_workers: int = 0,
    progress: bool = True,
    say: Say = print,
) -> Run:
    """Train from a recipe into a new run folder.

    recipe: the name of a shipped recipe or of an algorithm, a .yaml file, or a mapping of keys, nested or dotted.
    overrides: keys to set on top, as "KEY=VALUE" strings or as a mapping of dotted keys. `model` and `data` are short
        for model.policy and data.train.
    run: the run folder to create; it must be new or empty. By default runs/RECIPE-N.
    model, tokenizer: the policy: a name or folder, or a loaded transformers model and its tokenizer. The run trains a
        copy, which is saved in the run folder.
    data, eval_data: training and evaluation data: a name, a list of dicts, a datasets.Dataset, or a function that
        returns an iterator of dicts.
    rewards: a list of names, functions, (function, weight) or dicts with `use`; functions may have the signature of TRL
        or verl.
    env: the environment: a name, a class, a function of a prompt, or a dict with `use`.
    callbacks: functions of (step, metrics), or objects with on_step, on_evaluate, on_end; True or a reason ends it.
    processes: how many processes of this machine train together, one for each GPU; they get names, not objects.
    layout: "replicated" (the optimizer is divided over ranks), "sharded" (weights too, FSDP2), or "auto", what fits.
    ray: place the processes on a Ray cluster, with so many samplers and reward_workers; each has so many cpus and gpus.
    progress: show progress on standard error.
    say: receives notes, one line each.

    The recipe and overrides take objects, too, at the keys model.policy, data.train, data.evaluate, rewards and env.
    config.yaml names an object by its fingerprint; `ascent.resume` needs it again.

    Returns the run, read back from its folder: `state`, `metrics`, `samples`, `checkpoints`.

        run = ascent.train("sft", {"model": "tiny:llama", "data": "arithmetic:256"}, run="runs/sft")
        run.metrics[-1]["loss/total"]
    """
    check_arguments(recipe, overrides, run)
    given = as_keys(model=model, data=data, eval_data=eval_data, rewards=rewards, env=env)
    options = ray_options(ray, processes, samplers, cpus, gpus, reward_workers)
    if processes != 1 or options is not None:
        refuse_objects(processes, recipe, given, tokenizer, callbacks, ray=ray)
        words = [*override_strings(overrides), *override_strings(nest_keys(given))]
        start: Any = train_in_processes if options is None else train_on_ray
        return start(
            str(recipe),
            words,
            options or processes,
            run=run,
            layout=layout,
            progress=progress,
            say=say,
        )
    plan = plan_of(recipe, overrides, given=given, tokenizer=tokenizer)
    return _train_here(
        plan, recipe, Callbacks(callbacks), run, layout=layout, progress=progress, say=say
    )


def _train_here(
    plan: Plan,
    recipe: Recipe,
    called: Callbacks,
    run: str | Path | None,
    *,
    layout: Layout,
    progress: bool,
    say: Say,
) -> Run:
    """In this process, alone or as a rank."""
    origin, name = (
        (recipe, Path(recipe).stem) if isinstance(recipe, str | Path) else ("Python", plan.row.name)
    )
    header = f"# Resolved by ascent {__version__} from {origin}; itself a recipe.\n"
    with process_group(layout=layout) as ranks:
        folder = (
            Path(run) if run is not None else ranks.broadcast(next_folder(name), "the run folder")
        )
        if run is None and ranks.is_first:
            say(f"the run folder is {folder}")
        train_plan(
            plan, folder, callbacks=called, progress=progress, say=say, header=header, ranks=ranks
        )
    return read_run(folder)


def resume(
    run: str | Path,
    *,
    data: Any = None,
    eval_data: Any = None,
    rewards: Any = None,
    env: Any = None,
    callbacks: Any = (),
    accept_changes: bool = False,
    processes: int = 1,
    layout: Layout = "auto",
    ray: bool = False,
    samplers: int = 0,
    cpus: float = 1.0,
    gpus: float | None = None,
    reward_workers: int = 0,
    progress: bool = True,
    say: Say = print,
) -> Run:
    """Continue a run from its newest valid checkpoint, bit for bit.

    run: the run folder.
    data, eval_data, rewards, env: the objects that the run was started with, if it was; others are refused by their
        fingerprint.
    callbacks: as for `ascent.train`.
    accept_changes: continue although inputs of the run have changed; the change is recorded.
    processes, layout, ray, samplers, cpus, gpus, reward_workers: as for `ascent.train`; they need not be those that the
        run was started with.
    progress: show progress on standard error.
    say: receives notes, one line each.

    Returns the run, read back from its folder.

        ascent.resume("runs/sft")
    """
    given = as_keys(data=data, eval_data=eval_data, rewards=rewards, env=env)
    called = Callbacks(callbacks)
    options = ray_options(ray, processes, samplers, cpus, gpus, reward_workers)
    if processes != 1 or options is not None:
        refuse_objects(processes, "", given, None, callbacks, ray=ray)
        more: dict[str, Any] = {
            "accept_changes": accept_changes,
            "layout": layout,
            "progress": progress,
            "say": say,
        }
        if options is not None:
            return resume_on_ray(Path(run), options, **more)
        return resume_in_processes(Path(run), processes, **more)
    resume_run(
        Path(run),
        given=given,
        callbacks=called,
        accept_changes=accept_changes,
        layout=layout,
        progress=progress,
        say=say,
    )
    return read_run(Path(run))


def plan_of(
    recipe: Recipe,
    overrides: Overrides = (),
    *,
    given: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
) -> Plan:
    """The plan of a recipe with overrides on top, `given` among them; a plan stays as it is."""
    if isinstance(recipe, Plan):
        if overrides or given:
            raise ValueError(
                "overrides apply to a recipe, but a plan is resolved already; override its recipe"
            )
        return recipe
    collector = Collector(tokenizer)
    base = collector.replace(nest_keys(recipe)) if isinstance(recipe, Mapping) else recipe
    if isinstance(overrides, Mapping):
        overrides = override_strings(collector.replace(nest_keys(overrides)))
    more = override_strings(collector.replace(nest_keys(given or {})))
    collector.finish()
    plan = resolve(load_config(base, [*overrides, *more]))
    refuse_missing(flatten(plan.config), collector.objects, "ascent.train(...")
    over = dict(flatten_mapping(parse_overrides([*overrides, *more])))
    origins = {key: OVERRIDE if key in over else origin for key, origin in plan.origins.items()}
    return replace(plan, objects=collector.objects, origins=origins)


def override_strings(overrides: Overrides) -> Sequence[str]:
    """Overrides as KEY=VALUE; a value is read as YAML, of which JSON is a part."""
    if not isinstance(overrides, Mapping):
        return overrides
    return [f"{key}={as_json(key, value)}" for key, value in _flat(overrides)]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Single keys: two sources may set keys of one section."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def train_plan(
    plan: Plan,
    folder: Path,
    *,
    callbacks: Callbacks | None = None,
    progress: bool = True,
    say: Say = print,
    header: str = "",
    ranks: Ranks = SINGLE,
) -> int:
    """A new run in `folder`, from the first step to the last; returns the last finished step."""
    say = say if ranks.is_first else _say_nothing
    claim = FolderClaim(folder, LEFTOVERS, say=say) if ranks.is_first else None
    with ExitStack() as stack:
        try:
            say_slow(plan, say)
            plan = with_arithmetic(plan, folder, ranks)
            recipe, (plan, found) = plan, record_inputs(plan, folder, say=say, ranks=ranks)
            training = assemble(plan, folder, ranks=ranks)
            stack.callback(close, training, say)
            recipe, plan = (with_steps(each, training.steps) for each in (recipe, plan))
            run: RunFolder = UnwrittenFolder(folder)
            if claim is not None:
                environment, inputs = (
                    describe(devices=[device()], ranks=ranks.count),
                    inputs_text(recipe, found),
                )
                text = header + as_yaml(recipe.config)
                run = RunFolder.create(
                    folder, text, environment, inputs=inputs, lock=claim.lock, say=say
                )
        except BaseException:
            if claim is not None:
                claim.abandon()
            raise
        with run:
            return drive(
                plan, training, run, callbacks or Callbacks(), done=0, progress=progress, say=say
            )


def resume_run(
    folder: Path,
    *,
    given: Mapping[str, Any] | None = None,
    callbacks: Callbacks | None = None,
    accept_changes: bool = False,
    layout: Layout = "auto",
    progress: bool = True,
    say: Say = print,
) -> int:
    """Continue a run from its newest valid checkpoint, bit for bit; returns the last finished step."""
    if not (folder / CONFIG).is_file():
        raise ValueError(
            f"{folder} is no run folder: it has no {CONFIG}; ascent runs lists the runs of a folder. A run that was "
            "killed before it had one is started again with ascent train and the same --run"
        )
    config = read_yaml((folder / CONFIG).read_text(encoding="utf-8"), str(folder / CONFIG))
    try:
        plan = resolve(validate(config))
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG}: {error}") from error
    plan = replace(plan, objects=objects_again(plan.config, given or {}, folder))
    with process_group(layout=layout) as ranks:
        say = say if ranks.is_first else _say_nothing
        return _resume(plan, folder, callbacks or Callbacks(), accept_changes, progress, say, ranks)


def _resume(
    plan: Plan,
    folder: Path,
    callbacks: Callbacks,
    accept_changes: bool,
    progress: bool,
    say: Say,
    ranks: Ranks,
) -> int:
    ended = ranks.broadcast(state_of(folder) == "finished", "the state of the run")
    with ExitStack() as stack:
        lock = stack.enter_context(Lock(folder, say=say)) if ranks.is_first else None
        found = ranks.broadcast(
            newest(folder / CHECKPOINTS) if ranks.is_first else None, "the newest checkpoint"
        )
        for line in (
            found.lines() if found else ["no checkpoint was saved; starting from the first step"]
        ):
            say(line)
        done, steps = (found.step if found else 0), plan.config.run.steps
        if done > steps or (
            done == steps and ended
        ):  # a run killed after its last save has yet to end
            raise ValueError(
                f"{folder} is finished (step {done} of {steps}), so there is nothing to resume; to train further, "
                f"raise run.steps in {folder / CONFIG}"
            )
        say_slow(plan, say)
        plan = with_arithmetic(plan, folder, ranks)
        plan, changes = check_inputs(
            plan,
            folder,
            done,
            started=found is not None,
            accept=accept_changes,
            say=say,
            ranks=ranks,
        )
        training = assemble(
            plan, folder, model_folder=found.folder / "model" if found else None, ranks=ranks
        )
        stack.callback(close, training, say)
        if found is not None:
            restore(training, found)
        run: RunFolder = UnwrittenFolder(folder)
        if ranks.is_first:
            environment = describe(devices=[device()], ranks=ranks.count)
            run = RunFolder.reopen(folder, done, environment, changes=changes, lock=lock, say=say)
        stack.enter_context(run)
        return drive(plan, training, run, callbacks, done=done, progress=progress, say=say)


def _say_nothing(text: str) -> None:
    """Rank 0 speaks for all."""


def say_slow(plan: Plan, say: Say) -> None:
    """Say what will take much longer than it needs to, before anything is loaded."""
    if slow := describe_slow_dtype(plan.config.model.dtype):
        say(slow)


def assemble(
    plan: Plan, folder: Path, *, model_folder: Path | None = None, ranks: Ranks = SINGLE
) -> Training:
    """Every part of a run; `model_folder` is the checkpoint's model when resuming."""
    trackers.require(plan.config.run.trackers)
    refuse_absent_files(plan.config)
    rng.seed(plan.config.seed)
    plan = with_arithmetic(plan, folder, ranks)
    return (_assemble_rl if plan.row.samples else assemble_offline)(
        plan, folder, model_folder, ranks
    )


def _assemble_rl(plan: Plan, folder: Path, model_folder: Path | None, ranks: Ranks) -> Training:
    config = plan.config
    if config.run.keep_best:
        evaluation.refuse_unreported(
            config.run.best_metric, names_of(plan), talks=config.env is not None
        )
    rl = RLSetup(plan, folder, model_folder, ranks)
    source, evaluate, texts = rl.source, rl.evaluate, sample_records.TokenTexts(rl.model.tokenizer)

    def samples() -> SampleBatch:
        records = sample_records.samples(
            source.rollouts, source.advantages, texts, source.token_stats
        )
        return SampleBatch(records, len(source.rollouts))

    def answers() -> SampleBatch:
        assert evaluate is not None
        return SampleBatch(sample_records.answers(evaluate.rollouts), len(evaluate.rollouts))

    return Training(
        *(rl.model, rl.learner, rl.objective, source, ()),
        notes=(*rl.notes, *prompt_overlap(source.prompts, evaluate.prompts if evaluate else ())),
        longest=rl.longest,
        steps=config.run.steps,
        evaluate=evaluate,
        samples=samples,
        answers=None if evaluate is None else answers,
        reward_failures=sample_records.NewFailures(rl.failures),
        others=rl.others,
        saved=rl.saved,
        first_policy_step=config.update.critic_warmup_steps + 1,
        stop_reason=lambda: source.stop_reason,
        close=rl.close,
    )
