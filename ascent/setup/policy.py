"""The models of a run, as its recipe names them: the policy, with or without an adapter, and the frozen reference."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ascent.checkpoints import disk
from ascent.models import load as models
from ascent.models import lora, tiny
from ascent.models.heads import StepFormat
from ascent.models.model import LanguageModel
from ascent.parallel.ranks import SINGLE, Ranks
from ascent.setup.objects import NO_OBJECTS, Objects, is_object, label_of, write_model
from ascent.update.optim import Adam

if TYPE_CHECKING:  # not imported, because sampling from a model needs no recipes and no algorithms
    from ascent.plan.resolve import Plan
    from ascent.update.reference_cache import ReferenceCache

TINY = "tiny:"
MPS = "ASCENT_MPS"
# What building a run may leave in its folder before there is a run: models and log-probs made from the recipe alone.
INITIAL, REFERENCE = "initial", "reference.safetensors"


def load_policy(
    plan: Plan, folder: Path, model_folder: Path | None = None, *, place: str | None = None
) -> LanguageModel:
    """The model to train: from a checkpoint, as the recipe says, or a tiny one made here (`tiny:llama`).

    With LoRA a checkpoint gives the adapter alone; the model beside it is the recipe's, as at the start.
    """
    config, settings = plan.config, plan.config.model
    notes = _check_device(plan)
    if config.update.optimizer_offload and device() == "cpu":
        notes += (
            "update.optimizer_offload saves nothing here: without a GPU, everything is in host memory",
        )
    origin: str | Path | None = model_folder
    if origin is None or settings.lora is not None:
        origin = initial(settings.policy, folder, config.seed, plan.objects)
    model = models.load(
        origin,
        head=_head(plan),
        dtype=settings.dtype,
        device=place or device(),
        gradient_checkpointing=settings.gradient_checkpointing,
        seed=config.seed,
        trust_remote_code=settings.trust_remote_code,
        routing_replay=settings.routing_replay,
        quantize=settings.quantize,
        arithmetic=arithmetic_of(plan),
    )
    model.notes += notes
    model.normalization = (
        None  # what a reward model had learnt before says nothing of what it will have learnt
    )
    model.step_format = (
        StepFormat(config.data.step_separator) if "step_head" in plan.row.needs else None
    )
    if settings.lora is None:
        return model
    model = lora.attach(model, rank=settings.lora, alpha=settings.lora_alpha, seed=config.seed)
    if model_folder is not None:
        lora.restore(model, model_folder)
    return model


def arithmetic_of(plan: Plan) -> str:
    """What was decided (`setup.arithmetic`); fast where nobody decided."""
    return "exact" if plan.config.model.arithmetic == "exact" else "fast"


def _head(plan: Plan) -> models.Heads:
    if plan.row.needs & {"score_head", "step_head"}:
        return "scalar"
    return "both" if "critic" in plan.row.needs and plan.config.model.critic == "head" else "tokens"


def reference_of(
    plan: Plan, folder: Path, policy: LanguageModel, ranks: Ranks = SINGLE
) -> ReferenceCache:
    """The frozen reference: the recipe's, or the policy as it was before the first step."""
    from ascent.update.reference_cache import ReferenceCache

    settings = plan.config.model
    folder.mkdir(parents=True, exist_ok=True)
    file, of = (
        folder / REFERENCE,
        plan.inputs.get("model.reference") or plan.inputs.get("model.policy", ""),
    )
    if settings.reference is None and policy.adapter is not None:
        return ReferenceCache(lora.WithoutAdapter(policy), file=file, fingerprint=of, ranks=ranks)
    name = initial(settings.reference or settings.policy, folder, plan.config.seed, plan.objects)
    frozen = frozen_model(plan, name, arithmetic=arithmetic_of(plan))
    return ReferenceCache(frozen, file=file, fingerprint=of, ranks=ranks)


def frozen_model(plan: Plan, name: str | Path, *, arithmetic: str = "fast") -> LanguageModel:
    """A second model that is never trained, loaded as the recipe has the policy loaded."""
    settings = plan.config.model
    return load_frozen(
        name,
        dtype=settings.dtype,
        trust_remote_code=settings.trust_remote_code,
        arithmetic=arithmetic,
    )


def load_frozen(
    name: str | Path,
    *,
    head: models.Heads = "tokens",
    dtype: str = "float32",
    trust_remote_code: bool = False,
    arithmetic: str = "fast",
) -> LanguageModel:
    """A model that is never trained, on the device of this process."""
    model = models.load(
        name,
        head=head,
        dtype=dtype,
        device=device(),
        trust_remote_code=trust_remote_code,
        arithmetic=arithmetic,
    )
    if head == "scalar" and any("new" in note for note in model.notes):
        raise ValueError(
            f"{name} has no scalar head, so its scores would be random; train a reward model from it first"
        )
    return model


def initial(name: str, folder: Path, seed: int, objects: Objects = NO_OBJECTS) -> str | Path:
    """The recipe's model. A tiny one is made inside the run folder, from its name and the seed alone; a loaded one is
    copied there."""
    if not name.startswith(TINY) and not is_object(name):
        return name
    made = (
        folder
        / INITIAL
        / (f"{label_of(name)}-{name[-13:-1]}" if is_object(name) else name.removeprefix(TINY))
    )
    if made.exists():
        return made
    if not is_object(name):
        _write(name, made, lambda place: tiny.named(place, made.name, seed=seed))
    elif name in objects:
        _write(name, made, lambda place: write_model(objects[name], place))
    else:
        raise ValueError(
            f"model.policy was a loaded model ({name}), but its copy {made} is gone; start a new run"
        )
    return made


def _write(name: str, made: Path, write: Callable[[Path], object]) -> None:
    """A model's folder, whole or not at all."""
    writing = made.with_name(f".{made.name}.writing")
    shutil.rmtree(writing, ignore_errors=True)
    try:
        disk.announce("write", writing)
        with disk.writing():
            write(writing)
        disk.sync_tree(writing)
        disk.rename(writing, made)
    except OSError as error:
        shutil.rmtree(writing, ignore_errors=True)
        raise ValueError(
            f"model {name} could not be written to {made}: {error}; free some space"
        ) from error


def adam_of(plan: Plan) -> Adam:
    update = plan.config.update
    return Adam(
        update.adam_beta1,
        update.adam_beta2,
        update.adam_eps,
        update.weight_decay,
        update.optimizer_offload,
    )


def device() -> str:
    """CUDA where there is a GPU, else the CPU; the GPU of a Mac only where ASCENT_MPS=1 asks for it."""
    if torch.cuda.is_available():
        return "cuda"
    if os.environ.get(MPS) != "1":
        return "cpu"
    if not torch.backends.mps.is_available():
        raise ValueError(f"{MPS}=1, but torch finds no GPU of a Mac (mps) here; unset {MPS}")
    return "mps"


def _check_device(plan: Plan) -> tuple[str, ...]:
    """Refuse what cannot run on a Mac's GPU before anything is loaded; a note where that GPU is not used.

    The native engine has no kernels for it, metrics of scores need float64, which it lacks, and nobody has tried the
    rest: it is used only on request.
    """
    if device() != "mps":
        unused = device() == "cpu" and torch.backends.mps.is_available()
        return (
            f"the GPU of this Mac (mps) is not used, because training on it is untested; {MPS}=1 tries it",
        ) * unused
    row, settings = plan.row, plan.config.model
    reasons = {
        f"{row.name} samples": row.samples or plan.config.data.on_policy_fraction > 0,
        f"{row.name} trains a model that scores": bool(row.needs & {"score_head", "step_head"}),
        f"model.dtype={settings.dtype}": settings.dtype != "float32",
        f"model.quantize={settings.quantize}": settings.quantize is not None,
    }
    found = next((reason for reason, holds in reasons.items() if holds), None)
    if found is not None:
        raise ValueError(
            f"{MPS}=1 runs algorithms that train on files in float32, but {found}; unset {MPS}"
        )
    return ("training on the GPU of this Mac (mps), which is untested",)
