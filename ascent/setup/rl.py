"""A run that learns from rollouts, built from its plan: sampler, rewards, models, and the source that ties them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ascent import loop
from ascent.data.prepare import Limits, prepare_prompts
from ascent.data.render import Renderer
from ascent.data.sources import FileSource
from ascent.engines.geometric_mixture import GeometricMixtureSampler
from ascent.maths.batch import PackedBatch
from ascent.models import lora
from ascent.models.model import LanguageModel, max_sequence_length
from ascent.models.routing import EXPERTS
from ascent.models.tokenizer import decode
from ascent.parallel.ranks import Ranks
from ascent.parallel.sampling import FirstRankSampler
from ascent.plan.compatibility import check_rollout_lengths
from ascent.plan.resolve import Plan
from ascent.protocols import Sampler
from ascent.rewards.outcome import Tally
from ascent.rollouts.config import Models, RolloutConfig
from ascent.rollouts.evaluate import Evaluation
from ascent.rollouts.generate import RenderedPrompt, SamplingParams
from ascent.rollouts.kl_control import KLController
from ascent.rollouts.multi_turn import EnvSession
from ascent.rollouts.nash_md import NashMDSource
from ascent.rollouts.pairs import PairSource
from ascent.rollouts.score import Scorer
from ascent.rollouts.source import RolloutSource
from ascent.setup.critic import CRITIC, check_same_vocab, critic_of, learner_of
from ascent.setup.data import (
    heldout_name,
    load_part,
    prepare_records,
    refuse_long_answers,
    refuse_shorter,
)
from ascent.setup.environments import env_session, open_environment
from ascent.setup.layout import agreed_target, choose_layout, describe_layout, divide
from ascent.setup.optimal_values import add_optimal_values
from ascent.setup.policy import adam_of, arithmetic_of, device, frozen_model, initial, load_policy
from ascent.setup.reward_trial import try_rewards
from ascent.setup.reward_workers import use_reward_workers
from ascent.setup.rewards import scorer_of
from ascent.setup.samplers import (
    REMOTE,
    can_overlap,
    check_engine,
    policy_sampler,
    reference_sampler,
    samples_exactly,
)
from ascent.setup.step_rewards import refuse_stepless
from ascent.setup.teacher import teacher_of
from ascent.setup.unrounded import describe_masters, unrounded_weights
from ascent.update.device import to_device
from ascent.update.learner import LocalLearner
from ascent.update.objective import critic_objective, objective_of
from ascent.update.schedule import Schedule

# What a row may need that is not built yet.
NOT_YET = frozenset({"teacher_distribution", "gold_answers"})
NOT_YET |= {"noise", "step_head", "score_head"}


class FrozenModel:
    """A model that is only asked."""

    def __init__(self, model: Any, temperature: float, place: torch.device) -> None:
        self.model, self.temperature, self.place = model, temperature, place

    @torch.no_grad()
    def infer(self, batch: PackedBatch, want: frozenset[str]) -> Mapping[str, Tensor]:
        # The experts are those of the policy that sampled; a policy without its adapter shares its routers.
        plain = cast(PackedBatch, {name: each for name, each in batch.items() if name != EXPERTS})
        found: Mapping[str, Tensor] = self.model.outputs(
            to_device(plain, self.place), want, self.temperature
        )
        return found


def refuse_unfinished(plan: Plan) -> None:
    """What the table has and rollouts cannot supply yet, by name, before anything is loaded."""
    row, config = plan.row, plan.config
    missing = sorted(row.needs & NOT_YET)
    if missing:
        raise ValueError(
            f"algorithm {row.name} needs {', '.join(missing)}, which rollouts do not supply yet"
        )
    check_engine(plan)
    if config.model.routing_replay and config.rollouts.engine != "native":
        raise ValueError(
            f"rollouts.engine: {config.rollouts.engine} records no experts, but model.routing_replay=true needs them; "
            "use native, or set it to false"
        )


def texts_of(plan: Plan, model: LanguageModel, ranks: Ranks) -> FileSource | None:
    """Pretraining text, every token of it trained: `data.batch_size` records are mixed into every update."""
    config = plan.config
    if config.data.pretraining is None:
        return None
    renderer = Renderer(
        model.tokenizer, train_on="all", context=max_sequence_length(model.module.config)
    )
    found = prepare_records(config.data.pretraining, plan, renderer, want="examples")
    return FileSource(
        [found],
        batch_size=config.data.batch_size,
        tokens_per_microbatch=config.update.max_microbatch_tokens,
        max_tokens=config.data.max_tokens,
        seed=config.seed,
        shuffle=config.data.shuffle,
        ranks=ranks.count,
    )


def rendered_prompts(
    plan: Plan, name: str, renderer: Renderer, score: Scorer, session: EnvSession | None = None
) -> list[RenderedPrompt]:
    """Prompts of one name in the policy's own tokens, within the recipe's limits, whose answers can be scored."""
    data = plan.config.data
    records, made_from = open_environment(load_part(name, plan, "prompts"), session)
    refuse_long_answers(plan.config, renderer)
    score.refuse_unscorable(name, cast(Any, records.records))
    answer = plan.config.rollouts.max_new_tokens
    limits = Limits(
        data.max_prompt_tokens + 1,
        data.max_prompt_tokens,
        data.prompt_overflow,
        answer_tokens=answer,
    )
    prompts, _ = prepare_prompts(
        records, renderer, limits, invalid_rows=data.invalid_rows, check=score.problem
    )
    return [RenderedPrompt(prompt, tokens, made_from.get(prompt.id)) for prompt, tokens in prompts]


def reference_model(plan: Plan, folder: Path, policy: LanguageModel, longest: int) -> FrozenModel:
    """The reference of the KL: the recipe's, or the policy as it was loaded."""
    config = plan.config
    if config.model.reference is None and policy.adapter is not None:
        frozen: Any = lora.WithoutAdapter(policy)
    else:
        name = initial(
            config.model.reference or config.model.policy, folder, config.seed, plan.objects
        )
        frozen = frozen_model(plan, name, arithmetic=arithmetic_of(plan))
        check_same_vocab(
            frozen, policy, "the reference", "use the model that the policy started from"
        )
        refuse_shorter("the reference (model.reference)", frozen, policy, longest)
        if frozen.module.config.vocab_size != policy.module.config.vocab_size:
            raise ValueError(
                f"the reference has {frozen.module.config.vocab_size} tokens, the policy "
                f"{policy.module.config.vocab_size}; their log-probs cannot be compared: use the model that "
                "the policy started from"
            )
    return FrozenModel(frozen, config.rollouts.temperature, policy.device)


def _warn_uncorrected(plan: Plan) -> tuple[str, ...]:
    lag = plan.config.rollouts.max_staleness
    if not lag or plan.row.corrects_rollouts:
        return ()
    return (
        f"warning: rollouts up to {lag} versions old are trained without a correction; the ratio is to the policy that "
        "sampled, and its clip bounds how far all versions since then may move it. cells.rollout_correction.use="
        "token_truncate weighs tokens by the current policy instead",
    )


class RLSetup:
    """The parts of such a run, in the order in which they need each other. Whoever has it must `close` it."""

    def __init__(self, plan: Plan, folder: Path, model_folder: Path | None, ranks: Ranks) -> None:
        refuse_unfinished(plan)
        if plan.config.model.arithmetic == "exact" and ranks.count > 1:
            raise ValueError(
                f"model.arithmetic=exact on {ranks.count} ranks: equal log-probs are proven for one GPU; use fast (for "
                "a run that was begun with exact: in its config.yaml)"
            )
        self.ranks = ranks
        with (
            ExitStack() as exits
        ):  # closes rewards, environments and samplers if something does not fit
            self._build(plan, folder, model_folder, exits)
            self.close = exits.pop_all().close

    def _build(self, plan: Plan, folder: Path, model_folder: Path | None, exits: ExitStack) -> None:
        config, row = plan.config, plan.row
        self.model = load_policy(plan, folder, model_folder)
        context = max_sequence_length(self.model.module.config)
        self.renderer = Renderer(self.model.tokenizer, train_on="completion", context=context)
        self.model.add_stop_ids(self.renderer.stop_ids)
        self.failures = Tally()
        score = scorer_of(plan, self.failures, self.text, ranks=self.ranks)
        exits.callback(score.close)
        budget, env, held = config.rollouts.max_new_tokens, config.env, config.data.evaluate
        session = (
            None
            if env is None
            else env_session(env.model_dump(), self.renderer, budget, plan.objects)
        )
        if session is not None:
            exits.callback(session.close)
        self.settings = SamplingParams(
            budget, config.seed, config.rollouts.temperature, config.rollouts.top_p, session
        )
        train = rendered_prompts(plan, config.data.train, self.renderer, score, session)
        refuse_stepless(config, row, [each.prompt for each in train])
        tried = (
            try_rewards(score.pipeline, train[0], self.model.tokenizer.encode)
            if session is None
            else ()
        )
        exits.callback(use_reward_workers(plan, score, folder, self.ranks))
        heldout = rendered_prompts(plan, held, self.renderer, score, session) if held else []
        room = session.limits.room(budget) if session is not None else budget
        check_rollout_lengths(config, row, max(len(each.tokens) for each in train), room)
        self.longest = max(len(each.tokens) for each in (*train, *heldout)) + room
        sampler = self._sampler(plan, folder, model_folder)
        exits.callback(sampler.close)
        self.learner = self._policy_learner(plan, folder, model_folder)
        exact = samples_exactly(plan, sampler)
        reference = (
            reference_model(plan, folder, self.model, self.longest)
            if "reference" in row.needs
            else None
        )
        critic, notes = self._critic(plan, folder, model_folder)
        half, bits = config.model.dtype != "float32", config.model.arithmetic == "exact"
        asked = Models(
            self.learner,
            reference,
            critic,
            exact,
            self._teacher(plan, folder),
            half,
            self.ranks,
            bits,
        )
        if "optimal_values" in row.needs:
            train, how = add_optimal_values(
                train,
                folder,
                lambda: self._sampler_of_reference(plan, folder, reference),
                score,
                self.settings,
                self.text,
                of=repr((config.rewards, config.rollouts, sorted(plan.inputs.items()))),
                ranks=self.ranks,
            )
            notes = (*notes, how)
        weights = dict(row.weights)  # the controller's, where there is one
        self.objective = replace(objective_of(row, critic=not self.others), weights=weights)
        texts = texts_of(plan, self.model, self.ranks)
        kind, others = self._players(plan, folder, reference)
        for other in others.values():
            exits.callback(other.close)
        self.source = kind(
            train,
            sampler,
            score,
            asked,
            row,
            self._steps(plan, self._overlaps(plan, exact)),
            self.settings,
            decode=self.text,
            shuffle=config.data.shuffle,
            kl_controller=KLController(row, weights),
            pretraining=texts,
            **others,
        )
        exits.callback(self.source.close)
        self.evaluate = (
            Evaluation(heldout, sampler, score, self.settings, self.text, self.ranks)
            if heldout
            else None
        )
        self.notes = (
            *self.model.notes,
            *score.notes,
            *tried,
            f"{len(train)} prompts from {config.data.train}",
            *([f"{len(heldout)} held-out prompts from {heldout_name(config)}"] if heldout else []),
            f"log-probs of the sampling policy: {'as recorded' if exact else 'computed again by the trainer'}",
            *_warn_uncorrected(plan),
            *notes,
            *self._describe_learner(plan, exact, new=model_folder is None),
        )

    def _sampler(self, plan: Plan, folder: Path, model_folder: Path | None) -> Sampler:
        if self.ranks.count > 1 and plan.config.rollouts.partial_rollouts:
            raise ValueError(
                f"{self.ranks.count} ranks with rollouts.partial_rollouts=true: which groups finish first is decided "
                "in one process; use partial_rollouts=false, or one process"
            )
        copy = (
            partial(load_policy, plan, folder, model_folder)
            if self._overlaps(plan, samples_exactly(plan))
            else None
        )
        if self.ranks.count == 1 or plan.config.rollouts.engine not in REMOTE:
            return policy_sampler(plan, self.model, self.renderer, self.longest, folder, copy)
        if plan.config.env is not None:
            raise ValueError(
                f"{self.ranks.count} ranks with rollouts.engine={plan.config.rollouts.engine} and an environment: rank "
                "0 asks the servers for all ranks at once, but their episodes have different numbers of turns; use "
                "engine native, or one process"
            )
        own = None
        if self.ranks.is_first:
            own = policy_sampler(plan, self.model, self.renderer, self.longest, folder)
        exact = self.ranks.broadcast(own is not None and samples_exactly(plan, own), "the servers")
        return FirstRankSampler(own, self.ranks, exact=exact)

    def _overlaps(self, plan: Plan, exact: bool) -> bool:
        """Whether rollouts are sampled during the update. Not on several ranks, where both would exchange tensors."""
        return self.ranks.count == 1 and can_overlap(plan, exact=exact)

    def _describe_learner(self, plan: Plan, exact: bool, *, new: bool) -> tuple[str, ...]:
        found = (*(describe_masters(self.model) if new else ()), *describe_layout(self.layout))
        if can_overlap(plan, exact=exact) and not self._overlaps(plan, exact):
            found = (
                *found,
                "stale rollouts are sampled before the update: several ranks do not do both at once",
            )
        return found

    def _policy_learner(self, plan: Plan, folder: Path, model_folder: Path | None) -> LocalLearner:
        """The policy takes no step while the critic warms up alone. If it is divided, the whole of it samples."""
        self.layout = choose_layout(plan, self.model, self.ranks)
        model = self.model
        if self.layout.sharded:
            model = divide(
                lambda: load_policy(plan, folder, model_folder, place="cpu"),
                self.ranks,
                torch.device(device()),
                self.layout,
            )
        config = plan.config
        updates = config.update.epochs * config.update.minibatches
        steps = (config.run.steps - config.update.critic_warmup_steps) * updates
        warmup = config.update.warmup_steps * updates
        return LocalLearner(
            model,
            Schedule(config.update.learning_rate, config.update.schedule, warmup, steps),
            updates=updates,
            adam=adam_of(plan),
            max_grad_norm=config.update.max_grad_norm,
            temperature=config.rollouts.temperature,
            ranks=self.ranks,
            whole=self.model if self.layout.sharded else None,
            samples=True,
            unrounded=unrounded_weights(self.model) if model_folder is None else None,
        )

    def _critic(
        self, plan: Plan, folder: Path, model_folder: Path | None
    ) -> tuple[LocalLearner | None, tuple[str, ...]]:
        """Who is asked for values: nobody, the policy's own value head, or a second model, which then learns too."""
        self.others: tuple[loop.TrainedModel, ...] = ()
        self.saved: dict[str, Callable[[Path], None]] = {}
        if "critic" not in plan.row.needs:
            return None, ()
        if plan.config.model.critic == "head":
            return self.learner, ()
        saved = None if model_folder is None else model_folder.parent / CRITIC
        model, note = critic_of(plan, folder, self.model, saved)
        refuse_shorter(
            "the critic (model.critic_from, or the reward model)",
            model.model,
            self.model,
            self.longest,
        )
        trained = model
        if self.layout.sharded:
            model.model.to_host()  # it is written there when it is saved
            trained = divide(
                lambda: critic_of(plan, folder, self.model, saved, place="cpu")[0],
                self.ranks,
                torch.device(device()),
                self.layout,
            )
        values = unrounded_weights(model.model) if saved is None else None
        learner = learner_of(
            plan, trained, self.ranks, model if self.layout.sharded else None, values
        )
        self.others = (loop.TrainedModel(CRITIC, learner, critic_objective(plan.row)),)
        self.saved = {CRITIC: model.save}
        return learner, (note,)

    def text(self, tokens: Sequence[int]) -> str:
        return decode(self.model.tokenizer, tokens)

    def _teacher(self, plan: Plan, folder: Path) -> FrozenModel | None:
        if "teacher" not in plan.row.needs:
            return None
        teacher = teacher_of(plan, folder, self.model)
        refuse_shorter("the teacher (model.teacher)", teacher, self.model, self.longest)
        return FrozenModel(teacher, plan.config.rollouts.temperature, self.model.device)

    def _players(
        self, plan: Plan, folder: Path, reference: FrozenModel | None
    ) -> tuple[type[RolloutSource], dict[str, Sampler]]:
        """The source that the row learns from, and who answers in it besides the policy."""
        needs = plan.row.needs
        if "opponent_samples" in needs:
            assert reference is not None, (
                f"row {plan.row.name} mixes its opponent from the reference"
            )
            opponent = GeometricMixtureSampler(self.model, reference.model, self.renderer.stop_ids)
            return NashMDSource, {"opponent": opponent}
        kind = PairSource if plan.row.source == "fresh_pairs" else RolloutSource
        if "reference_samples" in needs:
            return kind, {"reference_sampler": self._sampler_of_reference(plan, folder, reference)}
        return kind, {}

    def _sampler_of_reference(
        self, plan: Plan, folder: Path, reference: FrozenModel | None
    ) -> Sampler:
        """Answers of the reference: from the model that is there, or from a copy that nobody else keeps.

        A copy it must be where the reference is the policy without its adapter, which no engine can switch off.
        """
        if reference is not None and isinstance(reference.model, LanguageModel):
            return reference_sampler(plan, reference.model, self.renderer, self.longest)
        settings = plan.config.model
        name = initial(
            settings.reference or settings.policy, folder, plan.config.seed, plan.objects
        )
        return reference_sampler(plan, frozen_model(plan, name), self.renderer, self.longest)

    def _steps(self, plan: Plan, overlap: bool) -> RolloutConfig:
        rollouts, update = plan.config.rollouts, plan.config.update
        return RolloutConfig(
            prompts_per_step=rollouts.prompts_per_step,
            group_size=rollouts.group_size,
            epochs=update.epochs,
            minibatches=update.minibatches,
            target_kl=update.target_kl,
            dynamic_sampling_tries=rollouts.dynamic_sampling_tries,
            tokens_per_microbatch=update.max_microbatch_tokens,
            microbatch_target=agreed_target(plan, self.model, self.ranks, self.layout),
            bootstrap_truncated=rollouts.truncated_reward == "bootstrap",
            critic_warmup_steps=update.critic_warmup_steps,
            max_staleness=rollouts.max_staleness,
            overlap=overlap,
            partial_rollouts=rollouts.partial_rollouts,
            max_ref_kl=plan.config.run.max_ref_kl,
            token_stats=True,
        )
