"""Rollouts and outcomes as JSON, for rewards in other processes: what a reward reads arrives as it was sent.

Numbers keep their bits. Data of a prompt that JSON would change, such as a tuple or a date, is refused, because a
reward could then say something else than in the trainer's own process. Routed experts are left out: no reward reads
them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ascent.records import Completion, Episode, Message, Prompt, Rollout, StepReward, Turn
from ascent.rewards.outcome import Failure, Outcome


def call_to_json(name: str, timeout: float, rollouts: Sequence[Rollout]) -> bytes:
    """One call of a reward; ValueError where JSON would change what the reward reads."""
    found = {
        "reward": name,
        "timeout": timeout,
        "rollouts": [_rollout_to_json(each) for each in rollouts],
    }
    return json.dumps(found).encode()


def call_from_json(body: bytes) -> tuple[str, float, list[Rollout]]:
    found = json.loads(body)
    return (
        found["reward"],
        found["timeout"],
        [_rollout_from_json(each) for each in found["rollouts"]],
    )


def outcomes_to_json(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [
        {
            "parts": dict(each.parts),
            "steps": [[step.token, step.value] for step in each.steps],
            "failure": None if each.failure is None else [each.failure.kind, each.failure.detail],
        }
        for each in outcomes
    ]


def outcomes_from_json(found: Sequence[Mapping[str, Any]]) -> list[Outcome]:
    return [
        Outcome(
            each["parts"],
            tuple(StepReward(*step) for step in each["steps"]),
            None if each["failure"] is None else Failure(*each["failure"]),
        )
        for each in found
    ]


def _rollout_to_json(rollout: Rollout) -> dict[str, Any]:
    prompt, episode = rollout.prompt, rollout.episode
    return {
        "prompt": [
            prompt.id,
            [[each.role, each.content, each.extra] for each in prompt.messages],
            prompt.answer,
            _unchanged(f"prompt {prompt.id!r}: info", prompt.info),
            _unchanged(f"prompt {prompt.id!r}: columns", prompt.columns),
        ],
        "sample": rollout.sample,
        "turns": [_turn_to_json(each) for each in rollout.turns],
        "episode": None
        if episode is None
        else [episode.ended, dict(episode.parts), dict(episode.counts), episode.detail],
    }


def _rollout_from_json(found: Mapping[str, Any]) -> Rollout:
    name, messages, answer, info, columns = found["prompt"]
    prompt = Prompt(name, tuple(Message(*each) for each in messages), answer, info, columns)
    episode = None if found["episode"] is None else Episode(*found["episode"])
    return Rollout(
        prompt, found["sample"], tuple(map(_turn_from_json, found["turns"])), episode=episode
    )


def _turn_to_json(turn: Turn) -> list[Any]:
    done = turn.completion
    completion = [
        done.prompt_id,
        done.sample,
        done.tokens,
        done.logprobs,
        done.versions,
        done.stop,
        done.log_mass,
    ]
    return [turn.observed, completion, turn.text, turn.reply, turn.reply_role]


def _turn_from_json(found: Sequence[Any]) -> Turn:
    observed, (prompt_id, sample, tokens, logprobs, versions, stop, log_mass), *rest = found
    mass = None if log_mass is None else tuple(log_mass)
    completion = Completion(
        prompt_id, sample, tuple(tokens), tuple(logprobs), tuple(versions), stop, mass
    )
    return Turn(tuple(observed), completion, *rest)


def _unchanged(owner: str, data: Mapping[str, Any]) -> dict[str, Any]:
    plain = dict(data)
    try:
        text = json.dumps(plain)
    except (TypeError, ValueError, RecursionError) as error:
        problem: str | None = str(error)
    else:  # their texts are compared, because NaN is not equal to itself
        problem = (
            None if repr(json.loads(text)) == repr(plain) else "a value or a key changes its type"
        )
    if problem is None:
        return plain
    raise ValueError(
        f"{owner} cannot be sent to a reward worker as JSON ({problem}); keep numbers, texts, lists and mappings with "
        "text keys in the data, or leave out --reward-workers"
    )
