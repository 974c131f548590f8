"""A run that learns from rollouts, built from its plan: sampler, rewards, models, and the source that ties them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ascent.build.plan import Plan
from ascent.build.policy import adam_of, device, initial, load_policy
from ascent.build.records import loaded
from ascent.build.rewarding import scorer_of
from ascent.data.prepare import Limits, prepare_prompts
from ascent.data.render import Renderer
from ascent.engines.hf import HFSampler
from ascent.engines.native.engine import NativeEngine
from ascent.models import load as models
from ascent.models import lora
from ascent.models.model import LanguageModel
from ascent.protocols import Sampler
from ascent.records import Rollout
from ascent.rewards.outcome import Tally
from ascent.rollouts.collect import Asked, Settings
from ascent.rollouts.evaluate import Evaluation
from ascent.rollouts.source import Models, RolloutSource
from ascent.rollouts.source import Plan as Steps
from ascent.update.batches import on_device
from ascent.update.local import LocalLearner
from ascent.update.schedule import Schedule

# What a row may need that is not built yet.
NOT_YET = frozenset({"pretraining", "teacher", "teacher_distribution", "optimal_values", "gold_answers", "collision"})
NOT_YET |= {"reference_samples", "noise", "step_head"}


class Frozen:
    """A model that is only asked."""

    def __init__(self, model: Any, temperature: float, place: torch.device) -> None:
        self.model, self.temperature, self.place = model, temperature, place

    @torch.no_grad()
    def infer(self, batch: Mapping[str, Any], want: frozenset[str]) -> Mapping[str, Tensor]:
        found: Mapping[str, Tensor] = self.model.outputs(on_device(batch, self.place), want, self.temperature)
        return found


def refuse_unfinished(plan: Plan) -> None:
    """What the table has and rollouts cannot supply yet, by name, before anything is loaded."""
    row, config = plan.row, plan.config
    missing = sorted(row.needs & NOT_YET)
    if missing:
        raise ValueError(f"algorithm {row.name} needs {', '.join(missing)}, which rollouts do not supply yet")
    if "critic" in row.needs and config.model.critic == "separate":
        raise ValueError(
            "model.critic: separate is not trained yet; use model.critic: head, a value head on the policy"
        )
    if config.rollouts.truncation == "bootstrap":
        raise ValueError("rollouts.truncation: bootstrap is not built yet; use score")
    if config.rollouts.engine not in ("native", "hf"):
        raise ValueError(f"rollouts.engine: {config.rollouts.engine} cannot train yet; use native or hf")
    if config.rollouts.max_staleness:
        raise ValueError("rollouts.max_staleness above 0 is not built yet; use 0")
    if row.controller is not None and row.controller.name != "fixed":
        raise ValueError(f"cells.controller {row.controller.name} is not built yet; use fixed")


def asked_of(plan: Plan, name: str, renderer: Renderer) -> list[Asked]:
    """Prompts of one name in the policy's own tokens, within the recipe's limits."""
    data = plan.config.data
    records = loaded(name, "prompts", seed=plan.config.seed, bad_rows=data.bad_rows)
    limits = Limits(data.max_prompt_tokens + 1, data.max_prompt_tokens, data.long_prompts)
    prompts, _ = prepare_prompts(records, renderer, limits, bad_rows=data.bad_rows)
    return [Asked(prompt, tokens) for prompt, tokens in prompts]


def sampler_of(plan: Plan, model: LanguageModel, renderer: Renderer, longest_prompt: int) -> Sampler:
    settings = plan.config.rollouts
    if settings.engine == "hf":
        return HFSampler(model, renderer.stop_ids)
    return NativeEngine(model, renderer.stop_ids, longest_sequence=longest_prompt + settings.max_new_tokens)


class Reinforcement:
    """The parts of such a run, in the order in which they need each other."""

    def __init__(self, plan: Plan, folder: Path, model_folder: Path | None) -> None:
        refuse_unfinished(plan)
        config, row = plan.config, plan.row
        self.model = load_policy(plan, folder, model_folder)
        self.renderer = Renderer(self.model.tokenizer, train_on="completion")
        self.failures = Tally()
        score = scorer_of(plan, self.failures)
        train = asked_of(plan, config.data.train, self.renderer)
        heldout = asked_of(plan, config.data.evaluate, self.renderer) if config.data.evaluate else []
        self.longest = max(len(each.tokens) for each in (*train, *heldout)) + config.rollouts.max_new_tokens
        sampler = sampler_of(plan, self.model, self.renderer, self.longest - config.rollouts.max_new_tokens)
        updates = config.update.epochs * config.update.minibatches
        steps, warmup = config.run.steps * updates, config.update.warmup_steps * updates
        self.learner = LocalLearner(
            self.model,
            Schedule(config.update.learning_rate, config.update.schedule, warmup, steps),
            adam=adam_of(plan),
            max_grad_norm=config.update.max_grad_norm,
            temperature=config.rollouts.temperature,
        )
        exact = config.rollouts.engine == "native" and device() == "cpu" and config.model.dtype == "float32"
        reference = self._reference(plan, folder) if "reference" in row.needs else None
        critic = self.learner if "critic" in row.needs else None
        self.source = RolloutSource(
            train, sampler, score, Models(self.learner, reference, critic, exact), row, self._steps(plan),
            self._settings(plan), text=self.text, shuffle=config.data.shuffle,
        )  # fmt: skip
        self.evaluate = Evaluation(heldout, sampler, score, self._settings(plan), self.text) if heldout else None
        self.notes = (
            *self.model.notes,
            f"{len(train)} prompts from {config.data.train}",
            f"log-probs of the sampling policy: {'as recorded' if exact else 'computed again by the trainer'}",
        )

    def text(self, tokens: Sequence[int]) -> str:
        return str(self.model.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def _reference(self, plan: Plan, folder: Path) -> Frozen:
        config = plan.config
        if config.model.reference is None and self.model.adapter is not None:
            frozen: Any = lora.WithoutAdapter(self.model)
        else:
            name = initial(config.model.reference or config.model.policy, folder, config.seed)
            frozen = models.load(name, dtype=config.model.dtype, device=device(), seed=config.seed)
            if frozen.module.config.vocab_size != self.model.module.config.vocab_size:
                raise ValueError(
                    f"the reference has {frozen.module.config.vocab_size} tokens, the policy "
                    f"{self.model.module.config.vocab_size}; their log-probs cannot be compared: use the model that "
                    "the policy started from"
                )
        return Frozen(frozen, config.rollouts.temperature, self.model.device)

    def _steps(self, plan: Plan) -> Steps:
        rollouts, update = plan.config.rollouts, plan.config.update
        return Steps(
            prompts=rollouts.prompts_per_step, samples=rollouts.group_size, epochs=update.epochs,
            minibatches=update.minibatches, target_kl=update.target_kl, refill_tries=rollouts.refill_tries,
            budget=update.tokens_per_microbatch,
        )  # fmt: skip

    def _settings(self, plan: Plan) -> Settings:
        rollouts = plan.config.rollouts
        return Settings(rollouts.max_new_tokens, plan.config.seed, rollouts.temperature, rollouts.top_p)


def shown(rollout: Rollout) -> dict[str, Any]:
    """A rollout as a line of samples.jsonl."""
    turn = rollout.turns[-1]
    return {
        "prompt": rollout.prompt.messages[-1].content, "sample": rollout.sample, "completion": rollout.text,
        "reward": rollout.reward, "parts": dict(rollout.parts), "stop": turn.completion.stop,
        "logprobs": [round(each, 4) for each in turn.completion.logprobs],
    }  # fmt: skip
