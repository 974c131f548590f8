"""Every key of a recipe, one sentence each. Numbers of cells are declared by the cells' own functions, not here.

An unset key takes the algorithm's own default where its row has one, and the default below otherwise; `ascent show
config RECIPE` prints the outcome. A key that has no effect for the chosen algorithm is an error (`ascent.plan`).
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag


def _plain(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str):
        raise ValueError("it must be a number, true, false or a word")
    return _within(value)


def _within(value: Any) -> Any:
    """Numbers, wherever they stand in an option, that a float holds; an infinite one means no bound."""
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _within(each)
    if isinstance(value, int | float) and LARGEST < abs(value) != math.inf:
        raise ValueError(f"it must be a number within {LARGEST:g}")
    return value


def _cell_or_nothing(value: Any) -> str:
    return NOTHING if value is False else CELL


# Strict, so that a quoted number or a `true` in the place of a number is an error and not a guess.
Whole = Annotated[int, Field(strict=True)]
Real = Annotated[float, Field(strict=True, allow_inf_nan=False)]
# Every number has an upper bound. Where nothing tighter is known: counts that 32 bits hold, as offsets of tokens do;
# numbers whose products float32 holds; seeds that torch takes.
MOST, LARGEST, LAST_SEED = 10**9, 1e30, 2**63 - 1
Switch = Annotated[bool, Field(strict=True)]
Plain = Annotated[Any, AfterValidator(_plain)]

# Tags appear in the paths of pydantic's errors; in angle brackets, no key can look like one.
CELL, NOTHING = "<cell>", "<false>"
Nothing = Annotated[Literal[False], Tag(NOTHING)]
Either = Discriminator(_cell_or_nothing)


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CellOverride(BaseModel):
    """Another function for a slot, other numbers for the function that is there, or both."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, Plain] = Field(init=False)

    use: str = Field("", description="Name of the function to put in this slot; unset keeps the row's own.")


class TermOverride(CellOverride):
    """The same for a slot that is a term of the loss, which also has a weight."""

    weight: Real = Field(
        1.0, ge=0, le=LARGEST, description="Factor of this term in the loss; unset keeps the row's own."
    )


One = Annotated[Annotated[CellOverride, Tag(CELL)] | Nothing, Either]
OneTerm = Annotated[Annotated[TermOverride, Tag(CELL)] | Nothing, Either]
Several = dict[str, Annotated[Annotated[dict[str, Plain], Tag(CELL)] | Nothing, Either]]


# Slots that hold several cells, and slots whose cell is a weighted term of the loss.
SEVERAL_SLOTS = ("reward_shaping", "filter", "token_weights", "extra_losses")
TERM_SLOTS = ("kl", "value_loss", "entropy_bonus", "loss")


class Cells(Section):
    """Changes to the cells of the algorithm's row; `false` empties a slot or removes one of its cells.

    Only slots that were set count (`model_fields_set`): the defaults here stand for "as the row has it".
    """

    reward_shaping: Several = Field({}, description="Rules applied to rewards first: function name -> its numbers.")
    advantage: One = Field(CellOverride(), description="How rewards become advantages.")
    advantage_norm: One = Field(CellOverride(), description="How advantages are rescaled.")
    filter: Several = Field({}, description="Which sequences are trained on: function name -> its numbers.")
    rollout_correction: One = Field(CellOverride(), description="Correction for sampler and trainer disagreeing.")
    ratio: One = Field(CellOverride(), description="Importance ratio between the trained and the sampling policy.")
    policy_loss: One = Field(CellOverride(), description="How the ratio is kept in bounds.")
    token_weights: Several = Field(
        {}, description="Weights on the loss of tokens or pairs: function name -> its numbers."
    )
    aggregation: One = Field(CellOverride(), description="How token terms become one number.")
    kl: OneTerm = Field(TermOverride(), description="KL term of the loss.")
    kl_controller: One = Field(CellOverride(), description="How the KL weight moves during training.")
    value_loss: OneTerm = Field(TermOverride(), description="Loss of the critic.")
    entropy_bonus: OneTerm = Field(TermOverride(), description="Entropy bonus.")
    extra_losses: Several = Field({}, description="Further loss terms: function name -> its weight and numbers.")
    loss: OneTerm = Field(TermOverride(), description="The whole loss, for algorithms of files or fresh pairs.")


class Model(Section):
    """Which models take part."""

    policy: str = Field(min_length=1, description="The model to train: a folder or a hub name.")
    reference: str | None = Field(None, description="The frozen model KL is measured from; null: the policy as loaded.")
    critic: Literal["separate", "head"] = Field(
        "separate", description="A critic with weights of its own, or a value head on the policy's trunk."
    )
    critic_from: str | None = Field(
        None,
        description="Where a separate critic starts: a folder or a hub name; null: the reward model, or the policy.",
    )
    reward_model: str | None = Field(None, description="The model that scores completions: a folder or a hub name.")
    teacher: str | None = Field(
        None, description="The frozen model to learn from: a folder or a hub name, with the policy's vocabulary."
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Type of the compute weights; the optimizer keeps float32 masters either way."
    )
    gradient_checkpointing: Switch = Field(
        False, description="Recompute activations in the backward pass: less memory, more time."
    )
    lora: Whole | None = Field(
        None,
        ge=1,
        le=2**16,
        description="Train LoRA matrices of this rank beside every linear layer; null: all weights.",
    )
    lora_alpha: Real = Field(
        32.0, gt=0, le=LARGEST, description="What LoRA adds is scaled by this number divided by the rank."
    )
    trust_remote_code: Switch = Field(
        False, description="Run code that comes with a model; it can do whatever you can."
    )
    routing_replay: Switch = Field(
        False, description="Tokens take the experts in training that they took while sampling (mixtures of experts)."
    )


class MixEntry(Section):
    """Further training data and its share."""

    use: str = Field(min_length=1, description="The data, given as for train.")
    share: Real = Field(gt=0, lt=1, description="Share of every step's records that comes from it.")


class Data(Section):
    """What is read from files."""

    train: str = Field(min_length=1, description="Training data: a file, a folder, a hub name or a built-in task.")
    mix: tuple[MixEntry, ...] = Field(
        (), description="Further training data, each with its share of the records; train gives the rest."
    )
    evaluate: str | None = Field(None, description="Data for evaluation, given as for train; null: no evaluation.")
    pretraining: str | None = Field(None, description="Pretraining text mixed into each step, given as for train.")
    centering_data: str | None = Field(
        None,
        description="Demonstrations that a trained reward model scores 0 on average, given as for train; null: the "
        "chosen answers of train.",
    )
    on_policy_fraction: Real = Field(
        0.0, ge=0, le=1, description="Share of the records whose last answer a student that has a teacher writes anew."
    )
    batch_size: Whole = Field(32, ge=1, le=10**6, description="Records in one optimizer step, over all ranks.")
    max_tokens: Whole = Field(
        2048, ge=2, le=MOST, description="Longest record in tokens, prompt included; a longer one is bad."
    )
    max_prompt_tokens: Whole = Field(1024, ge=1, le=MOST, description="Longest prompt in tokens.")
    prompt_overflow: Literal["refuse", "truncate"] = Field(
        "refuse", description="A prompt that is too long makes its row bad, or loses whole paragraphs from its end."
    )
    invalid_rows: Literal["fail", "skip"] = Field(
        "fail", description="Rows that cannot be used stop the run before it starts, or are counted, told and skipped."
    )
    train_on: Literal["completion", "assistant", "all"] = Field(
        "assistant", description="Which tokens are trained: the last answer, every assistant turn, or all of them."
    )
    step_separator: str = Field(
        "\n",
        min_length=1,
        description="What joins the steps of an answer, where steps are judged; saved with the process reward model.",
    )
    shuffle: Switch = Field(True, description="Shuffle each epoch, from the run's seed.")


class Rollouts(Section):
    """How completions are sampled."""

    prompts_per_step: Whole = Field(
        32, ge=1, le=10**6, description="Prompts sampled for one rollout step, over all ranks."
    )
    group_size: Whole = Field(8, ge=1, le=10**4, description="Completions sampled for each prompt.")
    max_new_tokens: Whole = Field(1024, ge=1, le=MOST, description="Token budget of a completion.")
    temperature: Real = Field(
        1.0,
        gt=0,
        le=1000,
        description="Divides the logits; above 0, because greedy sampling has no probability to learn from.",
    )
    top_p: Real = Field(1.0, gt=0, le=1, description="Sample from the smallest set of tokens with this mass; 1 is all.")
    truncated_reward: Literal["score", "bootstrap"] = Field(
        "score",
        description="A completion cut by its budget is scored as it is, or the critic stands in for the rest of it; "
        "cells.filter.not_truncated masks it instead, cells.reward_shaping.eos_subtract penalizes it.",
    )
    dynamic_sampling_tries: Whole = Field(
        0,
        ge=0,
        le=1000,
        description="Times to sample more prompts for groups that a filter dropped; 0 trains on what is left.",
    )
    engine: Literal["native", "hf", "vllm", "remote"] = Field("native", description="Which sampler makes completions.")
    max_staleness: Whole = Field(
        0, ge=0, le=1000, description="Weight versions a rollout may lag behind; 0 is synchronous."
    )


class PluginSection(BaseModel):
    """Something chosen by name. What else is written beside the name are its options, checked against the parameters of
    what was named (`ascent.plan`), so they are no keys of the schema."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, Annotated[Any, AfterValidator(_within)]] = Field(init=False)

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


class Reward(PluginSection):
    """One reward function and its share in the total; beside its own options it takes those of `rewards.combine`
    (name, weights, gate, clip) and of `rewards.calls` (timeout, on_error)."""

    use: str = Field(min_length=1, description="A built-in name, an entry point, or file.py:function.")
    weight: Real = Field(1.0, ge=-LARGEST, le=LARGEST, description="Factor of this reward in the weighted sum.")


class Environment(PluginSection):
    """What rollouts of several turns talk to; beside its own options it takes the limits of `rollouts.turns`."""

    use: str = Field(min_length=1, description="A built-in name, an entry point, or file.py:NAME.")


class Update(Section):
    """How weights change."""

    learning_rate: Real = Field(1e-6, gt=0, le=1, description="Peak learning rate of AdamW.")
    critic_learning_rate: Real | None = Field(
        None, gt=0, le=1, description="Peak learning rate of a separate critic; null: the policy's."
    )
    critic_warmup_steps: Whole = Field(
        0,
        ge=0,
        le=MOST,
        description="First steps in which a separate critic learns alone, from whole returns of the policy.",
    )
    weight_decay: Real = Field(0.0, ge=0, le=1, description="Decoupled weight decay.")
    adam_beta1: Real = Field(0.9, ge=0, lt=1, description="Decay of AdamW's first moment.")
    adam_beta2: Real = Field(0.999, ge=0, lt=1, description="Decay of AdamW's second moment.")
    adam_eps: Real = Field(1e-8, gt=0, le=1, description="AdamW's epsilon; RLHF with PPO uses 1e-5.")
    max_grad_norm: Real = Field(1.0, gt=0, le=LARGEST, description="Gradients are scaled down to this global norm.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="Learning rate after warm-up: constant, or falling to 0 at the last step."
    )
    warmup_steps: Whole = Field(0, ge=0, le=MOST, description="Steps over which the learning rate rises from 0.")
    epochs: Whole = Field(1, ge=1, le=1000, description="Passes over the rollouts of one step.")
    minibatches: Whole = Field(1, ge=1, le=10**6, description="Optimizer steps into which one pass is cut.")
    target_kl: Real | None = Field(
        None,
        gt=0,
        le=LARGEST,
        description="Stop the passes over a rollout step once KL to the sampling policy exceeds this.",
    )
    tokens_per_microbatch: Whole = Field(
        16384,
        ge=1,
        le=MOST,
        description="Tokens in one forward pass: time and memory, and the last bits of sums; nothing else.",
    )


class Run(Section):
    """How long a run lasts and what it keeps."""

    steps: Whole = Field(
        100, ge=1, le=MOST, description="Rollout steps, or optimizer steps for algorithms that read files."
    )
    save_every: Whole = Field(20, ge=1, le=MOST, description="Steps between checkpoints.")
    evaluate_every: Whole = Field(20, ge=1, le=MOST, description="Steps between evaluations.")
    max_ref_kl: Real | None = Field(
        None,
        gt=0,
        le=LARGEST,
        description="End the run once the policy is this far from its reference, in nats per token (k3).",
    )
    keep: Whole = Field(2, ge=1, le=MOST, description="How many checkpoints to keep; the oldest go first.")
    keep_best: Whole = Field(0, ge=0, le=MOST, description="How many of the best checkpoints to keep besides.")
    best_metric: str = Field(
        "loss/total",
        min_length=1,
        description="Which number of the evaluation says what is best: the smallest loss or error, the largest "
        "of anything else.",
    )
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = Field(
        (), description="Where metrics go besides the run folder and the terminal."
    )
    project: str = Field("ascent", min_length=1, description="The project on Weights & Biases.")


class Config(Section):
    """A recipe."""

    algorithm: str = Field(description="A row of the table (ascent show algorithms), or one of your own, file.py:ROW.")
    seed: Whole = Field(0, ge=0, le=LAST_SEED, description="The same seed gives the same bits.")
    model: Model = Field(description="Which models take part.")
    data: Data = Field(description="What is read from files.")
    rewards: tuple[Reward, ...] = Field((), description="What completions are scored with; the weighted sum counts.")
    env: Environment | None = Field(None, description="What completions talk to, turn by turn; null: one turn each.")
    rollouts: Rollouts = Field(default_factory=Rollouts, description="How completions are sampled.")
    update: Update = Field(default_factory=Update, description="How weights change.")
    cells: Cells = Field(default_factory=Cells, description="Changes to the cells of the algorithm's row.")
    run: Run = Field(default_factory=Run, description="How long a run lasts and what it keeps.")


def leaves(section: type[BaseModel] = Config, prefix: str = "") -> dict[str, Any]:
    """Every dotted key of the schema (slots of `cells` count as one each) with its pydantic field."""
    found: dict[str, Any] = {}
    for name, info in section.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            found |= leaves(info.annotation, f"{prefix}{name}.")
        else:
            found[prefix + name] = info
    return found
