"""How a reward function is called, by the names of its parameters. No torch.

    def f(rollout, *, options)                                        Ascent, one rollout: a score
    def f(rollouts, *, options)                                       Ascent, all rollouts: a list of scores
    def f(prompts, completions, completion_ids, **columns)            TRL, all rollouts: a list of numbers
    def f(prompt, completion, completion_ids, **columns)              the same for one rollout: a number
    def f(data_source, solution_str, ground_truth, extra_info)        verl, one rollout: a number, or {"score": ...}
    def f(data_sources, solution_strs, ground_truths, extra_infos)    verl, all rollouts: a list of those

Any of them may be `async`. A function takes as many of these parameters as it wants. With TRL's, other parameters are
columns of the data. Completions are message lists where the row's prompt is one, else text, as in TRL.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ascent.records import Prompt, Rollout
from ascent.rewards.outcome import Unscored

# Columns that hold a conversation; the prompt and the completion are then lists of messages.
CONVERSATIONS = ("prompt", "messages", "conversations", "conversation")
# What TRL passes besides, and only TRL has.
OF_TRL_ALONE = ("trainer_state", "log_extra", "log_metric", "environments")
Value = Callable[[Rollout], Any]


@dataclass(frozen=True)
class Signature:
    """The values that a function gets of each rollout, by parameter; `batch` collects them in lists over rollouts."""

    library: Literal["Ascent", "TRL", "verl"]
    batch: bool
    values: Mapping[str, Value] = field(default_factory=dict)

    def __str__(self) -> str:
        scope = "all rollouts of a step in one call" if self.batch else "one rollout per call"
        names = ", ".join(self.values) or ("rollouts" if self.batch else "rollout")
        columns = ", COLUMNS" if self.library == "TRL" else ""
        return f"{self.library}'s signature ({names}{columns}), {scope}"

    @property
    def returns(self) -> str:
        """What is expected back, for error messages."""
        one = 'a number or {"score": number}' if self.library == "verl" else "a number"
        expected = f"a list with {one} for each rollout" if self.batch else one
        return f"it was called with {self}, and should return {expected}"


def columns_of(prompt: Prompt) -> dict[str, Any]:
    """The columns of a prompt's row, and what a built-in task says of it."""
    found = {**prompt.info, **prompt.columns}
    return found if prompt.answer is None else {"answer": prompt.answer, **found}


def _is_conversation(prompt: Prompt) -> bool:
    if not prompt.columns:
        return len(prompt.messages) > 1
    return any(isinstance(prompt.columns.get(name), list | tuple) for name in CONVERSATIONS)


def _prompt(rollout: Rollout) -> Any:
    messages = rollout.prompt.messages
    if _is_conversation(rollout.prompt):
        return [{"role": each.role, "content": each.content} for each in messages]
    return (
        messages[-1].content if len(messages) == 1 else "\n".join(each.content for each in messages)
    )


def _completion(rollout: Rollout) -> Any:
    """The text of the last turn; in a conversation every message since the prompt."""
    if not _is_conversation(rollout.prompt):
        return rollout.text
    messages = []
    for index, turn in enumerate(rollout.turns):
        if index:
            messages.append({"role": turn.reply_role, "content": turn.reply})
        messages.append({"role": "assistant", "content": turn.text})
    return messages


def _completion_ids(rollout: Rollout) -> list[int]:
    return [token for turn in rollout.turns for token in turn.completion.tokens]


def _ground_truth(rollout: Rollout) -> Any:
    rule = rollout.prompt.columns.get("reward_model")
    given = rule.get("ground_truth") if isinstance(rule, Mapping) else None
    return rollout.prompt.answer if given is None else given


OURS, OURS_BATCH = Signature("Ascent", False), Signature("Ascent", True)
TRL = Signature(
    "TRL", True, {"prompts": _prompt, "completions": _completion, "completion_ids": _completion_ids}
)
TRL_ONE = Signature(
    "TRL", False, {"prompt": _prompt, "completion": _completion, "completion_ids": _completion_ids}
)
_VERL: dict[str, Value] = {
    "data_source": lambda rollout: columns_of(rollout.prompt).get("data_source"),
    "solution_str": lambda rollout: rollout.text,
    "ground_truth": _ground_truth,
    "extra_info": lambda rollout: columns_of(rollout.prompt).get("extra_info") or {},
}
VERL = Signature("verl", False, _VERL)
VERL_BATCH = Signature("verl", True, {f"{name}s": value for name, value in _VERL.items()})
# The first parameter of these that a function has decides.
MARKS = {
    **{
        "completions": TRL,
        "completion": TRL_ONE,
        "solution_str": VERL,
        "solution_strs": VERL_BATCH,
    },
    **{"rollout": OURS, "rollouts": OURS_BATCH, "prompts": TRL, "completion_ids": TRL},
}


def parameters_of(owner: str, function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{owner}: {error}; wrap it in a function, as in `def reward(rollout): ...`"
        ) from error


def signature_of(owner: str, function: Callable[..., Any]) -> Signature:
    """The signature that a function's parameters name; one parameter of any other name is a rollout."""
    parameters = parameters_of(owner, function)
    found = next((MARKS[name] for name in MARKS if name in parameters), OURS)
    named = [
        each
        for each in parameters.values()
        if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]
    if not named:
        shown = ", ".join(str(each) for each in parameters.values())
        raise ValueError(
            f"{owner} takes ({shown}), which does not say how to call it; name its parameters: rollout (Ascent), "
            "completions and columns (TRL), or data_source, solution_str, ground_truth, extra_info (verl)"
        )
    return found


def check_parameters(
    owner: str, function: Callable[..., Any], signature: Signature, options: Mapping[str, Any]
) -> None:
    """ValueError if a function of TRL's or verl's takes what nobody gives it, or lacks an option."""
    parameters = parameters_of(owner, function)
    unknown = [name for name in options if name not in parameters or name in signature.values]
    if unknown:
        free = (
            ", ".join(name for name in _named(parameters) if name not in signature.values) or "none"
        )
        raise ValueError(f"{owner} has no option {unknown[0]}; it has {free}")
    required = [
        name
        for name in _required(parameters)
        if name not in signature.values and name not in options
    ]
    absent = [name for name in required if signature.library == "verl" or name in OF_TRL_ALONE]
    if absent:
        raise ValueError(
            f"{owner} takes {absent[0]}, which no run here can give it ({signature}); give it a default, or set it as "
            f"an option of the reward"
        )
    bound = [name for name, each in parameters.items() if each.kind is each.POSITIONAL_ONLY]
    if bound:
        raise ValueError(
            f"{owner} takes {bound[0]} by position only, but it is called by name; remove the `/`"
        )


def _named(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    return [
        name
        for name, each in parameters.items()
        if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]


def _required(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    return [
        name for name in _named(parameters) if parameters[name].default is inspect.Parameter.empty
    ]


class Call:
    """The calls of one function of TRL's or verl's signature, with its options."""

    def __init__(
        self,
        owner: str,
        function: Callable[..., Any],
        signature: Signature,
        options: Mapping[str, Any],
    ):
        check_parameters(owner, function, signature, options)
        self.function, self.signature, self.options = function, signature, dict(options)
        bound = (
            function.keywords if isinstance(function, functools.partial) else {}
        )  # these stay as they are bound
        parameters = {
            name: each for name, each in parameters_of(owner, function).items() if name not in bound
        }
        self._bound = frozenset(bound)
        self._open = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        self._named = [name for name in _named(parameters) if name not in options]
        self._columns = [
            name
            for name in _required(parameters)
            if name in self._named and name not in signature.values
        ]
        self._needs_gold = any(
            name in _required(parameters) for name in ("ground_truth", "ground_truths")
        )

    def check(self, prompt: Prompt) -> None:
        """Unscored if the prompt's row lacks a column that the function takes."""
        columns = columns_of(prompt)
        missing = [name for name in self._columns if name not in columns]
        if missing:
            raise Unscored(
                "no_column",
                f"the function takes the column {missing[0]}, but the row has {', '.join(columns) or 'no columns'}; "
                "rename the parameter, give it a default, or add the column",
            )
        rule = columns.get("reward_model")
        given = isinstance(rule, Mapping) and rule.get("ground_truth") is not None
        if (
            self.signature.library == "verl"
            and self._needs_gold
            and prompt.answer is None
            and not given
        ):
            raise Unscored(
                "no_gold",
                "the function takes ground_truth, but the row has no reward_model.ground_truth",
            )

    def arguments(self, rollouts: Sequence[Rollout]) -> dict[str, Any]:
        """Keyword arguments for these rollouts (one of them unless the signature is a batch)."""
        given = {
            name: value
            for name, value in self.signature.values.items()
            if self._open or name in self._named
        }
        found = {name: [value(rollout) for rollout in rollouts] for name, value in given.items()}
        if self.signature.library == "TRL":
            rows = [columns_of(rollout.prompt) for rollout in rollouts]
            every = list(dict.fromkeys(name for row in rows for name in row))
            taken = {
                *self.signature.values,
                *TRL.values,
                *TRL_ONE.values,
                *self.options,
                *self._bound,
            }
            names = [
                name for name in every if name not in taken and (self._open or name in self._named)
            ]
            found |= {name: [row.get(name) for row in rows] for name in names}
        return (
            found if self.signature.batch else {name: values[0] for name, values in found.items()}
        )

    def __call__(self, rollouts: Sequence[Rollout]) -> Any:
        """A list of scores, or an awaitable of one."""
        returned = self.function(**self.arguments(rollouts), **self.options)
        return self._await(returned) if inspect.isawaitable(returned) else self._scores(returned)

    async def _await(self, returned: Any) -> Any:
        return self._scores(await returned)

    def _scores(self, returned: Any) -> Any:
        """The scores of a call; what is no list is returned as it is, for the caller to refuse."""
        scores = returned if self.signature.batch else [returned]
        scores = scores.tolist() if hasattr(scores, "tolist") else scores
        if (
            self.signature.library != "verl"
            or not isinstance(scores, Sequence)
            or isinstance(scores, str | bytes)
        ):
            return scores
        return [_verl_parts(each) if isinstance(each, Mapping) else each for each in scores]


def _verl_parts(returned: Mapping[str, Any]) -> Any:
    """The entry `score` counts, other finite numbers are reported, and texts are not."""
    if "score" not in returned:
        return Unscored(
            "wrong_type",
            f"a dict of verl's signature needs the key score, but it has {', '.join(returned)}",
        )
    others = {name: value for name, value in returned.items() if _is_finite(value)}
    return {**others, "score": returned["score"]}


def _is_finite(value: Any) -> bool:
    return isinstance(value, bool | int | float) and math.isfinite(value)
