"""Every key of a recipe, with one sentence. The parameters of cells are declared by the functions of the cells.

An unset key takes the default of the algorithm's row, or else the default below; `ascent show config RECIPE` prints the
result. A key without effect for the chosen algorithm is an error (`ascent.plan`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag

from ascent.config.fields import (
    MAX_COUNT,
    MAX_FLOAT,
    MAX_SEED,
    Bool,
    Float,
    Int,
    Scalar,
    Section,
    check_size,
)
from ascent.config.heldout import check_evaluate


def _cell_tag(value: Any) -> str:
    return DISABLED if value is False else CELL


# Tags appear in the paths of pydantic's errors; angle brackets distinguish them from keys.
CELL, DISABLED = "<cell>", "<false>"
Disabled = Annotated[Literal[False], Tag(DISABLED)]
CellOrDisabled = Discriminator(_cell_tag)


# Sections by the one key that each must have.
SHORT_FORMS = {"model": "model.policy", "data": "data.train"}


class CellOverride(BaseModel):
    """Another function for a slot, other parameters for its function, or both."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, Scalar] = Field(init=False)

    use: str = Field("", description="Function of this slot; unset: the row's.")


class TermOverride(CellOverride):
    """The same for a slot that is a weighted loss term."""

    weight: Float = Field(
        1.0, ge=0, le=MAX_FLOAT, description="Coefficient of this loss term; unset: the row's."
    )


Cell = Annotated[Annotated[CellOverride, Tag(CELL)] | Disabled, CellOrDisabled]
TermCell = Annotated[Annotated[TermOverride, Tag(CELL)] | Disabled, CellOrDisabled]
CellMap = dict[str, Annotated[Annotated[dict[str, Scalar], Tag(CELL)] | Disabled, CellOrDisabled]]


# Slots that hold several cells, and slots whose cell is a weighted loss term.
MULTI_CELL_SLOTS = ("reward_shaping", "filter", "token_weights", "extra_losses")
TERM_SLOTS = ("kl", "value_loss", "entropy_bonus", "loss")
# Slots that may stay empty; every other slot of a row's kind must hold a function, if only one that does nothing.
OPTIONAL_SLOTS = ("kl", "kl_controller", "value_loss", "entropy_bonus")


class Cells(Section):
    """Overrides of the cells of the algorithm's row; `false` disables a slot or one of its cells.

    Only the slots in `model_fields_set` count; the defaults mean "as in the row".
    """

    reward_shaping: CellMap = Field(
        {}, description="Reward shaping: function name -> its parameters."
    )
    advantage: Cell = Field(CellOverride(), description="Advantage estimator.")
    advantage_norm: Cell = Field(CellOverride(), description="Advantage normalization.")
    filter: CellMap = Field(
        {}, description="Filters of rollouts and groups: function name -> its parameters."
    )
    rollout_correction: Cell = Field(
        CellOverride(),
        description="Importance-sampling correction for sampler and trainer log-probs that differ.",
    )
    ratio: Cell = Field(
        CellOverride(),
        description="Importance ratio of the policy and the sampling policy, per token or per sequence.",
    )
    policy_loss: Cell = Field(
        CellOverride(), description="Policy loss: how the importance ratio is clipped."
    )
    token_weights: CellMap = Field(
        {}, description="Loss weights of tokens or pairs: function name -> its parameters."
    )
    aggregation: Cell = Field(CellOverride(), description="How token losses are aggregated.")
    kl: TermCell = Field(TermOverride(), description="KL loss.")
    kl_controller: Cell = Field(CellOverride(), description="Controller of the KL coefficient.")
    value_loss: TermCell = Field(TermOverride(), description="Value loss of the critic.")
    entropy_bonus: TermCell = Field(TermOverride(), description="Entropy bonus.")
    extra_losses: CellMap = Field(
        {}, description="Auxiliary losses: function name -> its weight and parameters."
    )
    loss: TermCell = Field(
        TermOverride(),
        description="The loss, for algorithms that train on files or on sampled pairs.",
    )


class Model(Section):
    """The models."""

    policy: str = Field(min_length=1, description="The model to train: a folder or a hub name.")
    reference: str | None = Field(
        None,
        description="Reference model of the KL: a folder or a hub name; null: the policy as loaded.",
    )
    critic: Literal["separate", "head"] = Field(
        "separate", description="A critic with its own weights, or a value head on the policy."
    )
    critic_from: str | None = Field(
        None,
        description="Initial weights of a separate critic, as for policy; null: the reward model, or the policy.",
    )
    reward_model: str | None = Field(None, description="Reward model: a folder or a hub name.")
    teacher: str | None = Field(
        None,
        description="Teacher of distillation: a folder or a hub name, with the vocabulary of the policy.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Dtype of the weights (the optimizer keeps float32 master weights); auto: bfloat16 on a GPU that "
        "computes in it, float32 elsewhere.",
    )
    arithmetic: Literal["auto", "fast", "exact"] = Field(
        "auto",
        description="exact: on an H100 or H200 in bfloat16, sampling and training give equal log-probs, bit for bit; "
        "auto: exact where it is proven, fast elsewhere.",
    )
    gradient_checkpointing: Bool = Field(
        False, description="Recompute activations in the backward pass: less memory, more time."
    )
    lora: Int | None = Field(
        None, ge=1, le=2**16, description="LoRA rank on every linear layer; null: full fine-tuning."
    )
    lora_alpha: Float = Field(
        32.0, gt=0, le=MAX_FLOAT, description="LoRA alpha: the update is scaled by alpha / rank."
    )
    quantize: Literal["nf4"] | None = Field(
        None,
        description="Store the frozen linear layers under LoRA in 4 bits (QLoRA); null: in dtype.",
    )
    trust_remote_code: Bool = Field(
        False, description="Run the code of a model repository, with all your permissions."
    )
    routing_replay: Bool = Field(
        False, description="Train with the experts that were routed to during sampling (MoE)."
    )


class MixEntry(Section):
    """A further training dataset and its share."""

    use: str = Field(min_length=1, description="The dataset, as for train.")
    share: Float = Field(gt=0, lt=1, description="Its share of the records of every step.")


class Data(Section):
    """The datasets."""

    train: str = Field(
        min_length=1,
        description="Training dataset: a file, a folder, a hub name or a built-in task.",
    )
    mix: tuple[MixEntry, ...] = Field(
        (), description="Further training datasets with their shares; train gives the rest."
    )
    evaluate: Annotated[str | None, AfterValidator(check_evaluate)] = Field(
        None,
        description="Evaluation dataset, as for train, or a share of train that is not trained on, such as 5%; null: "
        "no evaluation.",
    )
    pretraining: str | None = Field(
        None, description="Pretraining text for the PPO-ptx loss, as for train."
    )
    centering_data: str | None = Field(
        None,
        description="Examples that a trained reward model scores 0 on average, as for train; null: up to 2048 "
        "chosen answers of train.",
    )
    on_policy_fraction: Float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of records whose last answer the student samples (on-policy distillation).",
    )
    epochs: Float | None = Field(
        None,
        gt=0,
        le=10**6,
        description="Length of a run that trains on files, in place of run.steps; null: run.steps.",
    )
    batch_size: Int = Field(
        32, ge=1, le=10**6, description="Records per optimizer step, over all ranks."
    )
    max_tokens: Int = Field(
        2048,
        ge=2,
        le=MAX_COUNT,
        description="Maximum length of a record in tokens, prompt included; a longer one is invalid.",
    )
    max_prompt_tokens: Int = Field(
        1024, ge=1, le=MAX_COUNT, description="Maximum length of a prompt in tokens."
    )
    prompt_overflow: Literal["refuse", "truncate"] = Field(
        "refuse",
        description="A longer prompt makes its row invalid, or is truncated by paragraphs from its end.",
    )
    invalid_rows: Literal["fail", "skip"] = Field(
        "fail",
        description="Invalid rows fail the run before it starts, or are reported and skipped.",
    )
    train_on: Literal["completion", "assistant", "all"] = Field(
        "assistant", description="Loss mask: the last answer, every assistant turn, or all tokens."
    )
    step_separator: str = Field(
        "\n",
        min_length=1,
        description="Text between the steps of an answer; saved with the process reward model.",
    )
    shuffle: Bool = Field(True, description="Shuffle every epoch.")


class Rollouts(Section):
    """Sampling of rollouts."""

    prompts_per_step: Int = Field(
        32, ge=1, le=10**6, description="Prompts per rollout step, over all ranks."
    )
    group_size: Int = Field(8, ge=1, le=10**4, description="Completions per prompt.")
    max_new_tokens: Int = Field(
        1024, ge=1, le=MAX_COUNT, description="Maximum length of a completion in tokens."
    )
    temperature: Float = Field(
        1.0,
        ge=1e-6,
        le=1000,
        description="Sampling temperature; above 0, because greedy decoding gives no log-probs to train with.",
    )
    top_p: Float = Field(
        1.0,
        gt=0,
        le=1,
        description="Nucleus sampling: the smallest set of tokens with this probability mass; 1: all tokens.",
    )
    truncated_reward: Literal["score", "bootstrap"] = Field(
        "score",
        description="A truncated completion is scored as it is, or the critic's value bootstraps the rest; "
        "cells.filter.not_truncated masks it instead, cells.reward_shaping.eos_subtract penalizes it.",
    )
    dynamic_sampling_tries: Int = Field(
        0,
        ge=0,
        le=1000,
        description="How often prompts are resampled for groups that a filter dropped (DAPO); 0: train on the rest.",
    )
    engine: Literal["native", "hf", "vllm", "remote"] = Field(
        "native",
        description="Inference engine: in this process (native, hf), or servers (remote: ascent serve; vllm).",
    )
    servers: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (),
        description="URLs of the servers, such as http://host:8000/v1; empty: one is started on this machine.",
    )
    weights_folder: str | None = Field(
        None,
        description="Folder that run and servers share, for new weights; null: a folder of the run.",
    )
    lora_sync: Literal["auto", "adapter", "merged"] = Field(
        "auto",
        description="Servers get the LoRA adapter alone, or the model with the adapter merged; auto: the adapter where "
        "every server takes one.",
    )
    server_timeout: Float = Field(
        600.0,
        gt=0,
        le=86400,
        description="Seconds until a server's answer is sampled again elsewhere.",
    )
    server_concurrency: Int = Field(
        256,
        ge=1,
        le=4096,
        description="Completions that a server samples at a time; others wait for their turn.",
    )
    max_staleness: Int = Field(
        0, ge=0, le=1000, description="Weight versions that a rollout may be old; 0: synchronous."
    )
    partial_rollouts: bool = Field(
        False,
        description="New weights come between tokens: a step takes the groups that finish first, the others go on in "
        "the next; false: between requests.",
    )


class PluginSection(BaseModel):
    """A function or class chosen by name. The other keys of the section are its options; `ascent.plan` checks them
    against its parameters, so they are not keys of the schema."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, Annotated[Any, AfterValidator(check_size)]] = Field(init=False)

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})


class Reward(PluginSection):
    """One reward function and its weight. Besides its own options it takes those of `rewards.combine`
    (name, weights, gate, clip) and of `rewards.calls` (timeout, on_error)."""

    use: str = Field(
        min_length=1, description="A built-in name, an entry point, or file.py:function."
    )
    weight: Float = Field(
        1.0, ge=-MAX_FLOAT, le=MAX_FLOAT, description="Weight of this reward in the sum."
    )


class Environment(PluginSection):
    """The environment of multi-turn rollouts. Besides its own options it takes the limits of `rollouts.multi_turn`."""

    use: str = Field(min_length=1, description="A built-in name, an entry point, or file.py:NAME.")


MICROBATCH_TOKENS = 16384


class Update(Section):
    """Optimizer and updates."""

    learning_rate: Float = Field(1e-6, gt=0, le=1, description="Peak learning rate of AdamW.")
    critic_learning_rate: Float | None = Field(
        None, gt=0, le=1, description="Peak learning rate of a separate critic; null: the policy's."
    )
    critic_warmup_steps: Int = Field(
        0,
        ge=0,
        le=MAX_COUNT,
        description="First steps in which only the separate critic is trained, on Monte Carlo returns.",
    )
    weight_decay: Float = Field(0.0, ge=0, le=1, description="Decoupled weight decay.")
    adam_beta1: Float = Field(0.9, ge=0, lt=1, description="Decay of AdamW's first moment.")
    adam_beta2: Float = Field(0.999, ge=0, lt=1, description="Decay of AdamW's second moment.")
    adam_eps: Float = Field(
        1e-8, gt=0, le=1, description="AdamW's epsilon; RLHF with PPO uses 1e-5."
    )
    optimizer_offload: Bool = Field(
        False, description="Keep AdamW's masters and moments in pinned host memory."
    )
    max_grad_norm: Float = Field(
        1.0, gt=0, le=MAX_FLOAT, description="Gradient clipping by global norm."
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        description="Learning rate schedule after warmup: constant, or decay to 0 at the last step.",
    )
    warmup_steps: Int = Field(
        0, ge=0, le=MAX_COUNT, description="Linear warmup steps of the learning rate."
    )
    epochs: Int = Field(
        1, ge=1, le=1000, description="Epochs over the rollouts of one step (PPO epochs)."
    )
    minibatches: Int = Field(
        1, ge=1, le=10**6, description="Minibatches per epoch, one optimizer step each."
    )
    target_kl: Float | None = Field(
        None,
        gt=0,
        le=MAX_FLOAT,
        description="Early stopping of a step's epochs: maximum KL from the sampling policy.",
    )
    tokens_per_microbatch: Int | None = Field(
        None,
        ge=1,
        le=MAX_COUNT,
        description="Tokens per micro-batch, by default 16384 and on a GPU at most 13.5 GiB of activations, less where "
        "its memory is small; it changes time, memory and rounding only.",
    )

    @property
    def max_microbatch_tokens(self) -> int:
        """The most tokens of a micro-batch, and so of a sequence."""
        return self.tokens_per_microbatch or MICROBATCH_TOKENS


class Run(Section):
    """Length, checkpoints, evaluation and trackers of a run."""

    steps: Int = Field(
        100,
        ge=1,
        le=MAX_COUNT,
        description="Rollout steps, or optimizer steps for algorithms that train on files.",
    )
    save_every: Int = Field(20, ge=1, le=MAX_COUNT, description="Steps between checkpoints.")
    evaluate_every: Int = Field(20, ge=1, le=MAX_COUNT, description="Steps between evaluations.")
    max_ref_kl: Float | None = Field(
        None,
        gt=0,
        le=MAX_FLOAT,
        description="Stop the run at this KL from the reference, in nats per token (k3).",
    )
    keep: Int = Field(2, ge=1, le=MAX_COUNT, description="Number of last checkpoints to keep.")
    keep_best: Int = Field(
        0, ge=0, le=MAX_COUNT, description="Number of best checkpoints to keep besides."
    )
    best_metric: str = Field(
        "loss/total",
        min_length=1,
        description="Evaluation metric of the best checkpoint: minimal for a loss or an error, maximal for any other "
        "(with rollouts the default is reward/mean).",
    )
    trackers: tuple[Literal["tensorboard", "wandb"], ...] = Field(
        (), description="Trackers besides the run folder and the terminal."
    )
    project: str = Field("ascent", min_length=1, description="The project on Weights & Biases.")


class Config(Section):
    """A recipe."""

    algorithm: str = Field(
        description="A row of the algorithm table (ascent show algorithms), or your own: file.py:ROW."
    )
    seed: Int = Field(0, ge=0, le=MAX_SEED, description="The same seed gives the same bits.")
    model: Model = Field(description="The models.")
    data: Data = Field(description="The datasets.")
    rewards: tuple[Reward, ...] = Field(
        (), description="Reward functions; their weighted sum is the reward."
    )
    env: Environment | None = Field(
        None, description="Environment of multi-turn rollouts; null: single-turn."
    )
    rollouts: Rollouts = Field(default_factory=Rollouts, description="Sampling of rollouts.")
    update: Update = Field(default_factory=Update, description="Optimizer and updates.")
    cells: Cells = Field(
        default_factory=Cells, description="Overrides of the cells of the algorithm's row."
    )
    run: Run = Field(
        default_factory=Run, description="Length, checkpoints, evaluation and trackers."
    )


def leaves(section: type[BaseModel] = Config, prefix: str = "") -> dict[str, Any]:
    """Every dotted key of the schema with its pydantic field; a slot of `cells` is one key."""
    found: dict[str, Any] = {}
    for name, info in section.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            found |= leaves(info.annotation, f"{prefix}{name}.")
        else:
            found[prefix + name] = info
    return found
