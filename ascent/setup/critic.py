"""A critic with weights of its own: where it starts, that it reads the policy's tokens, how it is saved and restored.

It starts as `model.critic_from`, else as the reward model, whose score becomes the value of every state, else as the
policy. Where there is no scalar head yet, all values are 0 (`models.heads`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor, nn

from ascent.maths.batch import PackedBatch
from ascent.models import load as models
from ascent.models import lora
from ascent.models.heads import score_layer
from ascent.models.model import LanguageModel
from ascent.parallel.ranks import SINGLE, Ranks
from ascent.plan.resolve import Plan
from ascent.setup.policy import adam_of, arithmetic_of, device, initial
from ascent.update.learner import LocalLearner
from ascent.update.optim import Unrounded
from ascent.update.schedule import Schedule

CRITIC = "critic"  # its folder in a checkpoint, and its name among the learners


class Critic:
    """A scalar model as a critic. One that was a reward model keeps its center: values are in units of the rewards."""

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.center = 0.0 if model.normalization is None else model.normalization.mean

    def outputs(
        self, batch: PackedBatch, want: frozenset[str], temperature: float = 1.0
    ) -> dict[str, Tensor]:
        return {
            name: value - self.center
            for name, value in self.model.outputs(batch, want, temperature).items()
        }

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self.model.named_parameters()

    def modules(self) -> Iterator[nn.Module]:
        return self.model.modules()

    def train(self, mode: bool = True) -> Critic:
        self.model.train(mode)
        return self

    def eval(self) -> Critic:
        return self.train(False)

    def save(self, folder: Path) -> None:
        self.model.save(folder)


def critic_of(
    plan: Plan,
    folder: Path,
    policy: LanguageModel,
    saved: Path | None = None,
    *,
    place: str | None = None,
) -> tuple[Critic, str]:
    """The critic, and in words where it starts; `saved` is its folder in a checkpoint when resuming."""
    settings, seed = plan.config.model, plan.config.seed
    key, name = origin(plan)
    adapted = settings.lora is not None
    model = models.load(
        initial(name, folder, seed, plan.objects) if saved is None or adapted else saved,
        head="scalar",
        dtype=settings.dtype,
        device=place or device(),
        gradient_checkpointing=settings.gradient_checkpointing,
        seed=seed,
        trust_remote_code=settings.trust_remote_code,
        quantize=settings.quantize,
        arithmetic=arithmetic_of(plan),
    )
    model.step_format = None  # one that judged steps learns values from now on
    check_same_vocab(
        model, policy, f"the critic ({key} {name})", "name another model as model.critic_from"
    )
    fresh = zero_new_head(model)
    if settings.lora is not None:
        model = lora.attach(model, rank=settings.lora, alpha=settings.lora_alpha, seed=seed)
        if saved is not None:
            lora.restore(model, saved)
    start = "with a new head: all values are 0" if fresh else "head included"
    return Critic(model), f"the critic starts as {key} {name}, {start}"


def zero_new_head(model: LanguageModel) -> bool:
    """All values of a scalar head that the model's folder does not have become 0. Whether there is one."""
    drawn = [note for note in model.notes if "scalar head is new" in note]
    if drawn:
        nn.init.zeros_(score_layer(model.module).weight)
        others = [note for note in model.notes if note not in drawn]
        model.notes = (*others, "the scalar head is new: all values are 0")
    return bool(drawn)


def origin(plan: Plan) -> tuple[str, str]:
    """The key that names the model a critic starts as, and that name."""
    settings = plan.config.model
    if settings.critic_from is not None:
        return "model.critic_from", settings.critic_from
    if settings.reward_model is not None:
        return "model.reward_model", settings.reward_model
    return "model.policy", settings.policy


def check_same_vocab(model: LanguageModel, policy: LanguageModel, what: str, fix: str) -> None:
    """Token ids are handed over as they are, so they must mean the same to both models."""
    theirs, ours = model.tokenizer.get_vocab(), policy.tokenizer.get_vocab()
    if theirs == ours:
        return
    other = min(
        (word for word in ours if theirs.get(word) != ours[word]),
        key=lambda word: ours[word],
        default=None,
    )
    where = "" if other is None else f", the first difference being {other!r}"
    raise ValueError(
        f"{what} has a tokenizer of {len(theirs)} tokens, the policy one of {len(ours)}{where}; it would read other "
        f"words than the policy writes: {fix}, with the policy's tokenizer"
    )


def learner_of(
    plan: Plan,
    critic: Critic,
    ranks: Ranks = SINGLE,
    whole: Critic | None = None,
    unrounded: Unrounded | None = None,
) -> LocalLearner:
    """The critic's own optimizer. It learns in every step, the first ones alone where the recipe says so."""
    config = plan.config
    updates = config.update.epochs * config.update.minibatches
    schedule = Schedule(
        config.update.critic_learning_rate or config.update.learning_rate,
        config.update.schedule,
        config.update.warmup_steps * updates,
        config.run.steps * updates,
    )
    return LocalLearner(
        critic,
        schedule,
        updates=updates,
        adam=adam_of(plan),
        max_grad_norm=config.update.max_grad_norm,
        ranks=ranks,
        whole=whole,
        unrounded=unrounded,
    )
