"""A policy for a training loop of one's own: `ascent.Policy`.

It is the model, sampler and learner of a recipe behind five verbs: sample, pack, logprobs, step, save. A loop that
does what a recipe does gets the recipe's weights, bit for bit (docs/own-loop.md).
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from ascent.algorithms import TABLE
from ascent.api.batches import Rewards, check_batch, record_microbatches, with_rewards
from ascent.api.losses import Head, Loss, check_step, check_versions, objective_of_loss
from ascent.api.policy_config import policy_config
from ascent.api.prompt_sampler import PromptLike, PromptSampler
from ascent.api.train import Overrides, override_strings
from ascent.checkpoints.resume import newest, read_state
from ascent.checkpoints.save import save
from ascent.config.schema import MAX_COUNT
from ascent.data.collate import add_mismatched, collate
from ascent.data.prepare import Limits, render_record
from ascent.data.render import Renderer, TrainOn
from ascent.data.schemas import Record
from ascent.maths.batch import PackedBatch
from ascent.models.model import LanguageModel, max_sequence_length
from ascent.parallel.ranks import SINGLE
from ascent.plan.resolve import Plan
from ascent.records import Example, Rollout
from ascent.rollouts.batch import pack_rollouts, place_step_rewards
from ascent.rollouts.config import RolloutConfig
from ascent.rollouts.experience import model_outputs
from ascent.rollouts.microbatches import minibatches, split_microbatches, token_budget, units_of
from ascent.setup.arithmetic import with_arithmetic
from ascent.setup.critic import zero_new_head
from ascent.setup.layout import microbatch_target
from ascent.setup.objects import model_of, write_model
from ascent.setup.policy import adam_of, load_policy
from ascent.setup.rl import FrozenModel, reference_model
from ascent.setup.samplers import samples_exactly
from ascent.setup.unrounded import unrounded_weights
from ascent.update.device import to_device
from ascent.update.learner import LocalLearner
from ascent.update.objective import Objective
from ascent.update.schedule import Schedule

Batches = PackedBatch | Sequence[PackedBatch]
# The row of the table whose models have these heads.
ROWS: dict[Head, str] = {"tokens": "grpo", "scalar": "reward_model", "both": "ppo"}


class Policy:
    """A model with its sampler and its optimizer, for a training loop of one's own.

    model, tokenizer: a folder, a run, a hub name or `tiny:llama`; or a loaded transformers model, which is copied, and
        its tokenizer.
    overrides: further keys of a recipe that concern the models, the sampler or the optimizer, as in `ascent.train`.
    head: tokens for a language model, scalar for a reward model, critic for a critic (values of a new head are 0), both
        for a policy with a value head.
    reference: the model of `reference_logprobs`, as for `model`; None is the policy as it was loaded.
    env: the environment of multi-turn rollouts, as for `ascent.train`.
    dtype, lora, learning_rate, max_new_tokens, temperature, tokens_per_microbatch: the recipe's keys of these names.
    seed: the same seed gives the same bits.

        policy = ascent.Policy("tiny:llama", learning_rate=1e-3, max_new_tokens=8)
        rollouts = policy.sample(["1+1="], n=4)
        batch = policy.pack(rollouts, rewards=[float(each.text == "2") for each in rollouts])
        policy.step(ascent.add_advantages(batch, "grpo"), "grpo", kl=False)
        policy.save("runs/own")
    """

    def __init__(
        self,
        model: Any,
        overrides: Overrides = (),
        *,
        tokenizer: Any = None,
        head: Head | Literal["critic"] = "tokens",
        reference: Any = None,
        env: Any = None,
        dtype: str | None = None,
        lora: int | None = None,
        learning_rate: float | None = None,
        max_new_tokens: int | None = None,
        temperature: float | None = None,
        tokens_per_microbatch: int | None = None,
        seed: int = 0,
    ) -> None:
        if head not in (*ROWS, "critic"):
            raise ValueError(f"head={head!r}, but it must be one of {', '.join(ROWS)}, critic")
        self.head: Head = "scalar" if head == "critic" else head
        self._folder = Path(
            tempfile.mkdtemp(prefix="ascent-policy-")
        )  # where a tiny or loaded model is written
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        given = {
            "algorithm": ROWS[self.head],
            "seed": seed,
            "data.train": "-",  # the loop brings its own
            "model.policy": self._named("model", model, tokenizer),
            "model.critic": "head",
            "model.reference": None
            if reference is None
            else self._named("reference", reference, tokenizer),
            "model.dtype": dtype,
            "model.lora": lora,
            "update.learning_rate": learning_rate,
            "update.tokens_per_microbatch": tokens_per_microbatch,
            "rollouts.max_new_tokens": max_new_tokens,
            "rollouts.temperature": temperature,
        }
        plan = Plan(policy_config(given, override_strings(overrides)), TABLE[ROWS[self.head]])
        self.plan = with_arithmetic(plan, self._folder, SINGLE)
        self.config = self.plan.config
        self.model: LanguageModel = load_policy(self.plan, self._folder).eval()
        if head == "critic":
            zero_new_head(self.model)
        self.calls = 0  # of `sample`: with the seed they key its noise
        self._env = env

    @property
    def tokenizer(self) -> Any:
        return self.model.tokenizer

    @property
    def steps(self) -> int:
        """Optimizer steps taken; also the version of the weights, which `versions_T` of a batch counts."""
        return 0 if "learner" not in self.__dict__ else self.learner.steps

    @property
    def learning_rate(self) -> float:
        return self.learner.schedule.peak

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self.learner.schedule = Schedule(value)

    def sample(
        self, prompts: Sequence[PromptLike], n: int = 1, *, greedy: bool = False
    ) -> list[Rollout]:
        """Sample `n` completions of every prompt, or the greedy one.

        A prompt is a text, a list of messages or a `Prompt`. Returns the rollouts, prompt by prompt. The noise depends
        on the seed, the number of this call, the prompt's place and its id, and on nothing else.
        """
        if isinstance(prompts, str) or not prompts:
            raise ValueError(f"prompts={prompts!r}, but sample takes a list of at least one prompt")
        if n < 1:
            raise ValueError(f"n={n}, but at least 1 completion of every prompt is sampled")
        self.calls += not greedy
        return self._sampler.sample(
            prompts, n, greedy=greedy, noise_key=f"{self.calls}.0", version=self.steps
        )

    def pack(
        self,
        records: Sequence[Rollout] | Sequence[Record],
        rewards: Rewards | None = None,
        *,
        train_on: TrainOn = "assistant",
    ) -> PackedBatch:
        """Pack rollouts with their rewards, or records (examples, pairs, rankings, unpaired), into one batch.

        A batch is a dict of tensors (`ascent.maths.batch.PackedBatch` lists every field). A reward of None or NaN
        means that the rollout could not be scored. `train_on` says which tokens of examples are trained.
        """
        if not records:
            raise ValueError("pack needs at least one rollout or record")
        if isinstance(records[0], Rollout):
            return self._pack_rollouts(cast(Sequence[Rollout], records), rewards)
        if rewards is not None:
            raise ValueError(
                f"rewards are for rollouts, not for {type(records[0]).__name__} records"
            )
        renderer = self._renderers[train_on if isinstance(records[0], Example) else "completion"]
        limits = Limits(
            MAX_COUNT, MAX_COUNT
        )  # the model's context and the micro-batch are the limits here
        items = [render_record(cast(Record, each), renderer, limits) for each in records]
        if items[0].kind == "unpaired":
            items, _ = add_mismatched(items, max_tokens=self.config.update.max_microbatch_tokens)
        return collate(items)

    def logprobs(self, batch: PackedBatch) -> Tensor:
        """The log-prob of every trained token under the policy as it is now, without gradient."""
        return self.outputs(batch, "logprobs_T")["logprobs_T"]

    def reference_logprobs(self, batch: PackedBatch) -> Tensor:
        """The same under the reference: `reference`, or the policy as it was loaded."""
        return self._outputs(self._reference, batch, {"logprobs_T"})["logprobs_T"]

    def outputs(self, batch: PackedBatch, *names: str) -> PackedBatch:
        """Model outputs by name, without gradient: logprobs_T, entropy_T; with a scalar head values_T, scores_B."""
        return self._outputs(self, batch, set(names))

    def logits(self, batch: PackedBatch) -> Any:
        """The distributions at trained tokens, as `teacher_TV` of a micro-batch; computed a chunk at a time."""
        return self.infer(batch, frozenset({"logits_TV"}))["logits_TV"].detach()

    def microbatches(self, batch: PackedBatch) -> list[PackedBatch]:
        """The micro-batches that `step` would cut a batch into, to add to them what a whole batch cannot hold."""
        return self._microbatches(batch, whole_groups=False)

    def minibatches(
        self, batch: PackedBatch, count: int = 1, *, epochs: int = 1, whole_groups: bool = False
    ) -> Iterator[list[PackedBatch]]:
        """Several updates on the same rollouts: in every epoch a new shuffle, cut into `count` parts.

        Yields the micro-batches of one update, for `step`, which then needs `old_logprobs_T`; it is added here.
        `whole_groups` keeps the completions of a prompt in one update.
        """
        for name, number in (("count", count), ("epochs", epochs)):
            if number < 1:
                raise ValueError(f"{name}={number} would train on nothing; it must be at least 1")
        check_batch(batch)
        if "versions_T" in batch and "old_logprobs_T" not in batch and self.head != "scalar":
            check_versions([batch], self.steps)
            batch = {**batch, "old_logprobs_T": self.logprobs(batch)}
        yield from self._updates(batch, count, epochs, whole_groups=whole_groups)

    def step(self, batch: Batches, loss: Loss, /, **options: Any) -> dict[str, float]:
        """Take one optimizer step on a batch, or on the micro-batches of `minibatches`.

        loss: a name of the table (`ascent show algorithms`), a `Row`, or a function whose parameters are fields of the
        batch and model outputs, and which returns one loss per token, sequence or pair. options: cells of the row
        (`kl=False`, `policy_loss={"high": 0.28}`, `beta=0.1`), or keyword-only parameters of the function.

        Returns the metrics of the step.
        """
        return self._run(self.learner.step, batch, loss, options)

    def evaluate(self, batch: Batches, loss: Loss, /, **options: Any) -> dict[str, float]:
        """The loss and the metrics of `step`, without an update."""
        return self._run(self.learner.evaluate, batch, loss, options)

    def save(self, folder: str | Path) -> None:
        """Write the model as a Hugging Face folder; with LoRA the adapter, which names its base (`ascent export`)."""
        if self.model.adapter is not None and Path(self.model.origin).is_relative_to(self._folder):
            raise ValueError(
                "the base of this adapter exists only as long as the policy, so it could not be loaded again; save the "
                "base model in a folder first and give its path: ascent.Policy('folder', lora=...)"
            )
        self.model.save(folder)

    def checkpoint(self, folder: str | Path, step: int) -> None:
        """Save weights, optimizer and counters as the checkpoint of a step of the loop; the last two are kept."""
        longest = self._sampler.longest if "_sampler" in self.__dict__ else 0
        state = {"learner": self.learner.state(), "calls": self.calls, "longest": longest}
        state["learning_rate"] = self.learning_rate
        save(Path(folder), step, state, {"model": self.model.save})

    def restore(self, folder: str | Path) -> int:
        """Continue from the newest checkpoint, bit for bit; returns its step, 0 where there is none."""
        found = newest(Path(folder))
        if found is None:
            return 0
        self.close()
        rate = self.learning_rate
        self.learner.close()
        self.model = load_policy(self.plan, self._folder, found.folder / "model").eval()
        for name in ("learner", "_reference", "_renderers"):  # of the model before
            self.__dict__.pop(name, None)
        state = read_state(found.folder)
        self.learner.load_state(state["learner"])
        self.calls = state["calls"]
        self.learning_rate = state.get("learning_rate", rate)
        self._sampler.longest = state.get("longest", 0)
        return found.step

    def close(self) -> None:
        """Release what the sampler and the environment hold; the next call of `sample` makes them again."""
        if "_sampler" in self.__dict__:
            self._sampler.close()
            del self.__dict__["_sampler"]

    @torch.no_grad()
    def infer(self, batch: PackedBatch, want: frozenset[str]) -> Mapping[str, Tensor]:
        """One forward pass; `outputs` cuts a large batch first."""
        return self.model.outputs(
            to_device(batch, self.model.device), want, self.config.rollouts.temperature
        )

    @cached_property
    def learner(self) -> LocalLearner:
        update = self.config.update
        return LocalLearner(
            self.model,
            Schedule(update.learning_rate),
            adam=adam_of(self.plan),
            max_grad_norm=update.max_grad_norm,
            temperature=self.config.rollouts.temperature,
            unrounded=unrounded_weights(self.model),
        )

    @cached_property
    def _sampler(self) -> PromptSampler:
        return PromptSampler(self.plan, self.model, self._renderers["completion"], self._env)

    @cached_property
    def _reference(self) -> FrozenModel:
        return reference_model(self.plan, self._folder, self.model, longest=0)

    @cached_property
    def _renderers(self) -> dict[TrainOn, Renderer]:
        context = max_sequence_length(self.model.module.config)
        found = {
            each: Renderer(self.tokenizer, train_on=each, context=context)
            for each in get_args(TrainOn)
        }
        self.model.add_stop_ids(found["completion"].stop_ids)
        return found

    def _named(self, key: str, model: Any, tokenizer: Any) -> str:
        """The name or folder of a model; a loaded one is written into a folder first."""
        if isinstance(model, str | Path):
            if tokenizer is not None and key == "model":
                raise ValueError(
                    f"tokenizer= belongs to a loaded model; the folder {str(model)!r} has its own"
                )
            return str(model)
        folder = self._folder / key
        write_model(model_of(key, model, tokenizer), folder)
        return str(folder)

    def _pack_rollouts(self, rollouts: Sequence[Rollout], rewards: Rewards | None) -> PackedBatch:
        if rewards is not None:
            rollouts = with_rewards(rollouts, rewards)
        batch = pack_rollouts(rollouts)
        if any(each.steps for each in rollouts):
            batch |= place_step_rewards(rollouts, batch)
        if samples_exactly(self.plan):
            batch["old_logprobs_T"] = batch["sampler_logprobs_T"]
        return batch

    def _outputs(self, model: Any, batch: PackedBatch, names: set[str]) -> PackedBatch:
        check_batch(batch)
        return model_outputs(model, batch, names, self.config.update.max_microbatch_tokens)

    def _run(
        self, call: Any, batch: Batches, loss: Loss, options: Mapping[str, Any]
    ) -> dict[str, float]:
        objective = self._objective(loss, options, True)
        batches = self._microbatches(batch, objective.row.trains_groups)
        if len(batches) > 1:
            objective = self._objective(loss, options, False)
        check_step(batches, objective, self.steps)
        try:
            return {name: metric.value() for name, metric in call(batches, objective).items()}
        except KeyError as error:  # of a cell; losses are counted before anything is trained
            raise ValueError(str(error.args[0])) from error

    def _objective(
        self, loss: Loss, options: Mapping[str, Any], single_microbatch: bool
    ) -> Objective:
        limit = self.config.rollouts.max_new_tokens
        return objective_of_loss(
            loss, options, head=self.head, max_new_tokens=limit, single_microbatch=single_microbatch
        )

    def _microbatches(self, batch: Batches, whole_groups: bool) -> list[PackedBatch]:
        if not isinstance(batch, Mapping):
            if (
                not isinstance(batch, Sequence)
                or not batch
                or not all(isinstance(each, Mapping) for each in batch)
            ):
                raise ValueError(
                    f"step takes a packed batch, not {type(batch).__name__}; policy.pack makes one"
                )
            for each in batch:
                check_batch(each)
            return list(batch)
        check_batch(batch)
        if "versions_T" not in batch:
            return record_microbatches(batch, self.config.update.max_microbatch_tokens)
        return next(self._updates(batch, 1, 1, whole_groups=whole_groups))

    def _updates(
        self, batch: PackedBatch, count: int, epochs: int, *, whole_groups: bool
    ) -> Iterator[list[PackedBatch]]:
        config = RolloutConfig(prompts_per_step=1, group_size=1, epochs=epochs, minibatches=count)
        units = units_of(batch, whole_groups=whole_groups)
        for chosen in minibatches(units, config, seed=self.config.seed, step=self.calls):
            limit = self.config.update.max_microbatch_tokens
            budget = token_budget(batch, limit, microbatch_target(self.plan, self.model))
            yield split_microbatches(batch, chosen, budget, divisible=True)
