"""Prompts, requests, completions and rollouts.

Token ids are kept as sampled and never re-tokenized, so every per-token tuple of a completion has one entry per token.
A reward of None or NaN means "could not be scored": it is counted and left out, never taken as 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from ascent.records.checks import finite_or_nan, not_empty, one_of, one_per_token, valid_logprobs

Role = Literal["system", "user", "assistant", "tool"]
Stop = Literal["eos", "stop", "length", "abort"]
STOPS = get_args(Stop)
MIN_TEMPERATURE = 1e-6  # float32 logits by a much smaller number would be infinite
Ended = Literal["over", "turns", "tokens", "cut", "raised", "timeout"]


@dataclass(frozen=True)
class Message:
    """One turn of a conversation, as text.

    `extra` is what else a chat template reads, as JSON: `tool_calls` of the assistant, `name` and `tool_call_id` of a
    tool's reply, and in the first message `tools`, those on offer.
    """

    role: Role
    content: str
    extra: str = field(
        default="", repr=False
    )  # a built-in task's fingerprint is that of its records' repr

    def __post_init__(self) -> None:
        one_of("Message.role", self.role, get_args(Role))


@dataclass(frozen=True)
class Prompt:
    """A prompt. `answer`, `info` and `columns` (the row it was read from) are for the reward; the policy never sees
    them."""

    id: str
    messages: tuple[Message, ...]
    answer: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        not_empty(f"Prompt {self.id!r}.messages", self.messages, "give at least one message")

    def copy(self) -> Prompt:
        """With containers of its own: what a reward or an environment takes out of them stays in the data."""
        return replace(self, info=own_containers(self.info), columns=own_containers(self.columns))


def own_containers(value: Any) -> Any:
    """The same value in new dicts, lists and sets."""
    if isinstance(value, dict):
        return {name: own_containers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [own_containers(each) for each in value]
    return set(value) if isinstance(value, set) else value


@dataclass(frozen=True)
class Request:
    """A request for one completion. Its noise depends on (seed, prompt_id, sample, position) and nothing else.

    `greedy` takes the likeliest token at every position; log-probabilities are still those at `temperature`. `top_k`,
    then `top_p`, then `min_p` truncate the tempered distribution. `stop_ids` and the texts in `stop` end a completion
    besides the sampler's own end tokens; no end token is drawn before `min_new_tokens`.
    """

    prompt_id: str
    sample: int
    tokens: tuple[int, ...]
    max_new_tokens: int
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    greedy: bool = False
    top_k: int = 0  # 0 keeps every token
    min_p: float = 0.0
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        owner = f"Request {self.prompt_id!r}/{self.sample}"
        not_empty(f"{owner}.tokens", self.tokens, "render the prompt first")
        if self.max_new_tokens < 1:
            raise ValueError(
                f"{owner}: max_new_tokens={self.max_new_tokens}, but at least 1 token must be sampled"
            )
        if not self.temperature >= MIN_TEMPERATURE:
            raise ValueError(
                f"{owner}: temperature={self.temperature}, but it must be at least {MIN_TEMPERATURE:g}; greedy takes "
                "the likeliest token, and 1.0 samples the model as it is"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(
                f"{owner}: top_p={self.top_p}, but it must lie in (0, 1]; 1.0 keeps every token"
            )
        if self.top_k < 0:
            raise ValueError(
                f"{owner}: top_k={self.top_k}, but it counts tokens; 0 keeps every token"
            )
        if not 0 <= self.min_p <= 1:
            raise ValueError(
                f"{owner}: min_p={self.min_p}, but it must lie in [0, 1]; 0.0 keeps every token"
            )
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            raise ValueError(
                f"{owner}: min_new_tokens={self.min_new_tokens}, but it must lie in [0, max_new_tokens="
                f"{self.max_new_tokens}]"
            )
        if "" in self.stop:
            raise ValueError(
                f"{owner}: stop has an empty text, which ends every completion at once; drop it"
            )

    @property
    def truncates(self) -> bool:
        """Whether some tokens cannot be drawn although the model gives them mass."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0 or self.min_new_tokens > 0


@dataclass(frozen=True)
class RoutedExperts:
    """The experts that tokens were routed to during sampling: `layers` x `choices` numbers of `width` bytes per token.

    `prompt` has them for the request's tokens but the last, `sampled` for the token before each sampled one. The last
    sampled token has none: it was never run.
    """

    prompt: bytes
    sampled: bytes
    layers: int
    choices: int
    width: Literal[1, 2]

    @property
    def tokens(self) -> int:
        """The number of tokens with recorded experts."""
        return (len(self.prompt) + len(self.sampled)) // (self.layers * self.choices * self.width)


@dataclass(frozen=True)
class Completion:
    """Tokens a policy sampled, with their log-probabilities and why sampling stopped.

    `logprobs` are float32, after temperature, over the full distribution; NaN where a sampler could not report one.
    Under truncated sampling `log_mass` is the log of the mass that is left, so a token was drawn with log-probability
    `logprob - log_mass`. `versions` are the policy versions that sampled each token: they differ within a completion
    when new weights arrive during sampling. `routed_experts` is set where a mixture of experts replays its routes.
    """

    prompt_id: str
    sample: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    stop: Stop
    log_mass: tuple[float, ...] | None = None
    routed_experts: RoutedExperts | None = None

    def __post_init__(self) -> None:
        owner = f"Completion {self.prompt_id!r}/{self.sample}"
        one_of(f"{owner}.stop", self.stop, STOPS)
        if self.stop != "abort":
            not_empty(
                f"{owner}.tokens", self.tokens, "keep the token that ended it, or set stop='abort'"
            )
        one_per_token(owner, "logprobs", len(self.logprobs), len(self.tokens))
        one_per_token(owner, "versions", len(self.versions), len(self.tokens))
        valid_logprobs(owner, "logprobs", self.logprobs)
        if self.log_mass is not None:
            one_per_token(owner, "log_mass", len(self.log_mass), len(self.tokens))
            valid_logprobs(owner, "log_mass", self.log_mass)

    @property
    def truncated(self) -> bool:
        """Whether the token limit ended it."""
        return self.stop == "length"


@dataclass(frozen=True)
class Turn:
    """Token ids the policy read (a prompt, a tool's reply), then what it sampled.

    `text` is the completion decoded without special tokens, `reply` the environment's message before it, in the role
    `reply_role`. Both are for rewards and logs, never tokenized again.
    """

    observed: tuple[int, ...]
    completion: Completion
    text: str = ""
    reply: str = ""
    reply_role: Role = "user"


@dataclass(frozen=True)
class Reply:
    """An environment's reply to a turn: the message that the policy reads next, or None when the episode is over.

    `parts` are the reward components of the episode so far, for the reward `env`; later ones replace them. `counts` are
    events to sum up (tool calls, errors), by name.
    """

    message: Message | None
    parts: Mapping[str, float | None] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Episode:
    """How a rollout with an environment ended, with the environment's reward components and event counts.

    `over`: the environment ended it. `turns`, `tokens`: a limit of the episode. `cut`: the token limit of a turn.
    `raised`, `timeout`: the environment failed (`detail` says how), so the rollout cannot be scored.
    """

    ended: Ended
    parts: Mapping[str, float | None] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    detail: str = ""

    def __post_init__(self) -> None:
        one_of("Episode.ended", self.ended, get_args(Ended))

    @property
    def failed(self) -> bool:
        return self.ended in ("raised", "timeout")


@dataclass(frozen=True)
class StepReward:
    """A reward given at one sampled token: `token` counts the sampled tokens of the whole rollout from 0."""

    token: int
    value: float

    def __post_init__(self) -> None:
        if self.token < 0:
            raise ValueError(f"StepReward.token={self.token}, but positions count from 0")
        finite_or_nan("StepReward.value", self.value)


@dataclass(frozen=True)
class Rollout:
    """One sample of one prompt, in one or several turns, with its reward once scored.

    `parts` are reward components; `weights` has those that count in the reward. `failures` maps rewards that could not
    score it to the kind of failure.
    """

    prompt: Prompt
    sample: int
    turns: tuple[Turn, ...]
    reward: float | None = None
    parts: Mapping[str, float | None] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    steps: tuple[StepReward, ...] = ()
    failures: Mapping[str, str] = field(default_factory=dict)
    episode: Episode | None = None

    def __post_init__(self) -> None:
        owner = f"Rollout {self.prompt.id!r}/{self.sample}"
        not_empty(f"{owner}.turns", self.turns, "a rollout has at least one turn")
        finite_or_nan(f"{owner}.reward", self.reward)
        for name, value in self.parts.items():
            finite_or_nan(f"{owner}.parts[{name!r}]", value)
        late = [step.token for step in self.steps if step.token >= self.length]
        if late:
            raise ValueError(
                f"{owner}.steps: token {late[0]}, but only {self.length} tokens were sampled"
            )

    @property
    def length(self) -> int:
        """The number of sampled tokens."""
        return sum(len(turn.completion.tokens) for turn in self.turns)

    @property
    def text(self) -> str:
        """The text of the last turn, which rewards read."""
        return self.turns[-1].text

    @property
    def scored(self) -> bool:
        return self.reward is not None and not math.isnan(self.reward)

    @property
    def truncated(self) -> bool:
        """Whether a limit ended it: of its last turn, or of the episode."""
        if self.episode is not None:
            return self.episode.ended in ("turns", "tokens", "cut")
        return self.turns[-1].completion.truncated


@dataclass(frozen=True)
class Group:
    """The rollouts of one prompt."""

    prompt: Prompt
    rollouts: tuple[Rollout, ...]

    def __post_init__(self) -> None:
        owner = f"Group {self.prompt.id!r}"
        not_empty(f"{owner}.rollouts", self.rollouts, "a group has at least one rollout")
        others = sorted({r.prompt.id for r in self.rollouts} - {self.prompt.id})
        if others:
            raise ValueError(
                f"{owner} holds a rollout of prompt {others[0]!r}; group rollouts by their prompt's id"
            )
        samples = [r.sample for r in self.rollouts]
        if len(set(samples)) != len(samples):
            raise ValueError(
                f"{owner} has samples {samples}; number them apart, or they share their sampling noise"
            )
