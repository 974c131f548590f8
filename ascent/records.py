"""The nouns that travel through the pipeline. Frozen, checked when made, and free of torch.

Token ids are kept as sampled and never re-tokenized, so every per-token tuple of a completion has one entry for each
of its tokens. A reward of None or NaN means "could not be scored": counted and left out, never taken as 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Role = Literal["system", "user", "assistant", "tool"]
Stop = Literal["eos", "stop", "length", "abort"]
Ended = Literal["over", "turns", "tokens", "cut", "raised", "timeout"]

# A sampled log-probability is at most 0; float32 rounding of log-softmax can leave it a hair above.
ROUNDING = 1e-4


@dataclass(frozen=True)
class Message:
    """One turn of a conversation, as text."""

    role: Role
    content: str

    def __post_init__(self) -> None:
        _one_of("Message.role", self.role, ("system", "user", "assistant", "tool"))


@dataclass(frozen=True)
class Prompt:
    """What a policy is asked. `answer` and `info` are for the reward; the policy never sees them."""

    id: str
    messages: tuple[Message, ...]
    answer: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _not_empty(f"Prompt {self.id!r}.messages", self.messages, "give at least one message")


@dataclass(frozen=True)
class Request:
    """One completion asked of a sampler. Its noise depends on (seed, prompt_id, sample, position) and nothing else.

    `greedy` takes the likeliest token at every place; log-probabilities are still those at `temperature`. `top_k`, then
    `top_p`, then `min_p` cut the tempered distribution. `stop_ids` and the texts in `stop` end a completion besides the
    sampler's own end tokens; no end token is drawn before `min_new_tokens`.
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
        _not_empty(f"{owner}.tokens", self.tokens, "render the prompt first")
        if self.max_new_tokens < 1:
            raise ValueError(f"{owner}: max_new_tokens={self.max_new_tokens}, but at least 1 token must be sampled")
        if not self.temperature > 0:
            raise ValueError(
                f"{owner}: temperature={self.temperature}, but it must be above 0; 1.0 samples the model as it is"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"{owner}: top_p={self.top_p}, but it must lie in (0, 1]; 1.0 keeps every token")
        if self.top_k < 0:
            raise ValueError(f"{owner}: top_k={self.top_k}, but it counts tokens; 0 keeps every token")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"{owner}: min_p={self.min_p}, but it must lie in [0, 1]; 0.0 keeps every token")
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            raise ValueError(
                f"{owner}: min_new_tokens={self.min_new_tokens}, but it must lie in [0, max_new_tokens="
                f"{self.max_new_tokens}]"
            )
        if "" in self.stop:
            raise ValueError(f"{owner}: stop holds an empty text, which ends every completion at once; drop it")

    @property
    def truncates(self) -> bool:
        """True where some tokens cannot be drawn although the model gives them mass."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0 or self.min_new_tokens > 0


@dataclass(frozen=True)
class RoutedExperts:
    """The experts that tokens took while a completion was sampled: `layers` x `choices` numbers of `width` bytes each.

    `prompt` holds them for the request's tokens but the last, `sampled` for the token before each sampled one. The last
    token that was sampled has none: it was never run.
    """

    prompt: bytes
    sampled: bytes
    layers: int
    choices: int
    width: Literal[1, 2]

    @property
    def tokens(self) -> int:
        """How many have theirs."""
        return (len(self.prompt) + len(self.sampled)) // (self.layers * self.choices * self.width)


@dataclass(frozen=True)
class Completion:
    """Tokens a policy sampled, with their log-probabilities and why sampling stopped.

    `logprobs` are float32, after temperature, over the full distribution; NaN where a sampler could not report one.
    Under truncated sampling `log_mass` is the log of the mass that survived, so a token was in fact drawn with
    log-probability `logprob - log_mass`. `versions` holds the policy version that sampled each token: they differ
    within a completion when new weights arrive while it is being sampled. `routed_experts` is there where a mixture of
    experts is to take the same ones in training.
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
        _one_of(f"{owner}.stop", self.stop, ("eos", "stop", "length", "abort"))
        if self.stop != "abort":
            _not_empty(f"{owner}.tokens", self.tokens, "keep the token that ended it, or set stop='abort'")
        _as_long(owner, "logprobs", len(self.logprobs), len(self.tokens))
        _as_long(owner, "versions", len(self.versions), len(self.tokens))
        _logs(owner, "logprobs", self.logprobs)
        if self.log_mass is not None:
            _as_long(owner, "log_mass", len(self.log_mass), len(self.tokens))
            _logs(owner, "log_mass", self.log_mass)

    @property
    def truncated(self) -> bool:
        """True when the token budget ended it, not the policy."""
        return self.stop == "length"


@dataclass(frozen=True)
class Turn:
    """Token ids the policy read (a prompt, a tool's reply), then what it sampled.

    `text` is the completion decoded without special tokens, `heard` what an environment had said before it, in the
    role `heard_from`: for rewards and logs, never tokenized again.
    """

    observed: tuple[int, ...]
    completion: Completion
    text: str = ""
    heard: str = ""
    heard_from: Role = "user"


@dataclass(frozen=True)
class Reply:
    """What an environment says to a turn: the message that the policy reads next, or None when the episode is over.

    `parts` is its verdict on the episode so far, for the reward `env`; a later one replaces it. `counts` are events to
    add up (calls of a tool, errors), by name.
    """

    message: Message | None
    parts: Mapping[str, float | None] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Episode:
    """How a rollout with an environment went: by what it ended, the environment's verdict, what was counted.

    `over`: the environment ended it. `turns`, `tokens`: the episode's own limits. `cut`: a turn's token budget.
    `raised`, `timeout`: the environment failed (`detail` says how), so nothing can be said about the policy.
    """

    ended: Ended
    parts: Mapping[str, float | None] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    detail: str = ""

    def __post_init__(self) -> None:
        _one_of("Episode.ended", self.ended, get_args(Ended))

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
        _finite_or_nan("StepReward.value", self.value)


@dataclass(frozen=True)
class Rollout:
    """One prompt answered once, in one turn or several, with its reward once scored.

    `weights` says what each part counts for in the reward; parts that are only shown are not in it. `failures` says
    which rewards could not score it, and the word under which that is counted.
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
        _not_empty(f"{owner}.turns", self.turns, "a rollout has at least one turn")
        _finite_or_nan(f"{owner}.reward", self.reward)
        for name, value in self.parts.items():
            _finite_or_nan(f"{owner}.parts[{name!r}]", value)
        late = [step.token for step in self.steps if step.token >= self.length]
        if late:
            raise ValueError(f"{owner}.steps: token {late[0]}, but only {self.length} tokens were sampled")

    @property
    def length(self) -> int:
        """How many tokens the policy sampled."""
        return sum(len(turn.completion.tokens) for turn in self.turns)

    @property
    def text(self) -> str:
        """What the policy said last, which is what rewards read."""
        return self.turns[-1].text

    @property
    def scored(self) -> bool:
        return self.reward is not None and not math.isnan(self.reward)

    @property
    def truncated(self) -> bool:
        """True when a budget ended it: of its last turn, or of the whole episode."""
        if self.episode is not None:
            return self.episode.ended in ("turns", "tokens", "cut")
        return self.turns[-1].completion.truncated


@dataclass(frozen=True)
class Group:
    """The rollouts of one prompt, which a group baseline compares with each other."""

    prompt: Prompt
    rollouts: tuple[Rollout, ...]

    def __post_init__(self) -> None:
        owner = f"Group {self.prompt.id!r}"
        _not_empty(f"{owner}.rollouts", self.rollouts, "a group has at least one rollout")
        strangers = sorted({r.prompt.id for r in self.rollouts} - {self.prompt.id})
        if strangers:
            raise ValueError(f"{owner} holds a rollout of prompt {strangers[0]!r}; group rollouts by their prompt's id")
        samples = [r.sample for r in self.rollouts]
        if len(set(samples)) != len(samples):
            raise ValueError(f"{owner} has samples {samples}; number them apart, or they share their sampling noise")


@dataclass(frozen=True)
class Example:
    """A conversation to imitate."""

    id: str
    messages: tuple[Message, ...]

    def __post_init__(self) -> None:
        if not any(message.role == "assistant" for message in self.messages):
            raise ValueError(f"Example {self.id!r} has no assistant message, so nothing to learn; drop it or add one")


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt, the first preferred; `margin` says by how much, where that was recorded."""

    prompt: Prompt
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    margin: float | None = None

    def __post_init__(self) -> None:
        _answers(f"Pair {self.prompt.id!r}", (self.chosen, self.rejected))
        if self.margin is not None and not math.isfinite(self.margin):
            raise ValueError(
                f"Pair {self.prompt.id!r}: margin={self.margin}, but it must be finite; use None if unknown"
            )


@dataclass(frozen=True)
class Ranking:
    """Several answers to one prompt, best first, without ties."""

    prompt: Prompt
    answers: tuple[tuple[Message, ...], ...]

    def __post_init__(self) -> None:
        if len(self.answers) < 2:
            raise ValueError(
                f"Ranking {self.prompt.id!r} has {len(self.answers)} answer(s); a ranking needs at least 2"
            )
        _answers(f"Ranking {self.prompt.id!r}", self.answers)


@dataclass(frozen=True)
class UnpairedExample:
    """One answer with a thumb up or down: preference data without pairs."""

    prompt: Prompt
    answer: tuple[Message, ...]
    good: bool

    def __post_init__(self) -> None:
        _answers(f"Judged {self.prompt.id!r}", (self.answer,))


@dataclass(frozen=True)
class StepExample:
    """One answer in steps, each judged: the probability that it is right, 1 or 0 where that is known, None where not.

    A step is a stretch of text that ends with a separator (`data.step_separator`); the last one ends with the answer.
    """

    prompt: Prompt
    steps: tuple[str, ...]
    right: tuple[float | None, ...]

    def __post_init__(self) -> None:
        owner = f"Steps {self.prompt.id!r}"
        _not_empty(f"{owner}.steps", self.steps, "give at least one step")
        if len(self.right) != len(self.steps):
            raise ValueError(f"{owner} has {len(self.steps)} steps but {len(self.right)} judgements; give one for each")
        bad = next((value for value in self.right if value is not None and not 0 <= value <= 1), None)
        if bad is not None:
            raise ValueError(f"{owner}: a step is judged {bad}, but it must lie between 0 (wrong) and 1 (right)")
        if all(value is None for value in self.right):
            raise ValueError(f"{owner}: no step is judged, so there is nothing to learn; drop the record")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}, but it must be one of {', '.join(allowed)}")


def _not_empty(name: str, items: tuple[Any, ...], fix: str) -> None:
    if not items:
        raise ValueError(f"{name} is empty; {fix}")


def _as_long(owner: str, name: str, length: int, tokens: int) -> None:
    if length != tokens:
        raise ValueError(f"{owner} has {tokens} tokens but {length} {name}; give one entry per sampled token")


def _logs(owner: str, name: str, values: tuple[float, ...]) -> None:
    bad = next((value for value in values if value > ROUNDING or value == -math.inf), None)
    if bad is not None:
        raise ValueError(f"{owner}.{name} holds {bad}; the log of a probability above 0 is finite and at most 0")


def _finite_or_nan(name: str, value: float | None) -> None:
    if value is not None and math.isinf(value):
        raise ValueError(f"{name}={value}, but a reward is finite; return None for what cannot be scored")


def _answers(owner: str, answers: tuple[tuple[Message, ...], ...]) -> None:
    for answer in answers:
        _not_empty(f"an answer of {owner}", answer, "drop the record, or give the answer's messages")
    if len(set(answers)) != len(answers):
        raise ValueError(f"{owner} holds the same answer twice, which carries no preference; drop the record")
