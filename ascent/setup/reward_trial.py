"""Rewards tried on one made-up completion, so that what is wrong with them is known before anything is sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ascent.checkpoints import rng
from ascent.records import Completion, Rollout, Turn
from ascent.rewards.calls import score_all
from ascent.rewards.outcome import BUGS, RewardFailed
from ascent.rewards.registry import Batch, Reward, signature_taken
from ascent.rollouts.generate import RenderedPrompt
from ascent.rollouts.score import RewardPipeline

# Errors of the code, whatever the completion is. Others may be due to the made-up text.
ALWAYS = (
    "NameError",
    "UnboundLocalError",
    "ImportError",
    "ModuleNotFoundError",
    "NotImplementedError",
)
TEXT = "a made-up completion"


def try_rewards(
    pipeline: RewardPipeline, asked: RenderedPrompt, encode: Callable[[str], Sequence[int]]
) -> tuple[str, ...]:
    """Notes on rewards that fail; RewardFailed for bugs. Built-in rewards and models are not tried.

    The completion is the prompt's answer, if it has one. Random numbers go on as if nothing had been called.
    """
    text = asked.prompt.answer or TEXT
    tokens = tuple(encode(text)) or (0,)
    done = Completion(asked.prompt.id, 0, tokens, (0.0,) * len(tokens), (0,) * len(tokens), "eos")
    rollout = Rollout(asked.prompt, 0, (Turn(asked.tokens, done, text),))
    state = rng.capture()
    notes = [
        _try(pipeline, name, reward, rollout)
        for name, reward in pipeline.rewards.items()
        if _is_own(reward)
    ]
    rng.restore(state)
    return tuple(note for note in notes if note)


def _is_own(reward: Reward) -> bool:
    """Whether a reward is code of the user."""
    if isinstance(reward, Batch) and signature_taken(reward) is None:
        return not type(reward).__module__.startswith("ascent.")
    return True


def _try(pipeline: RewardPipeline, name: str, reward: Reward, rollout: Rollout) -> str:
    rule = pipeline.rules[name]
    ((outcome,),) = (
        each.values()
        for each in score_all({name: reward}, [rollout], timeout=rule.timeout, on_error="never")
    )
    failure = outcome.failure
    if failure is None or failure.kind not in (*BUGS, "raised", "timeout"):
        return ""
    words = f"reward {name}, tried on one made-up completion ({rollout.text!r:.40}): {failure.kind}: {failure.detail}"
    stops = failure.kind in BUGS or failure.detail.startswith(ALWAYS)
    if rule.on_error == "failures" or (rule.on_error == "bugs" and stops):
        raise RewardFailed(f"{words}; fix it: nothing has been sampled yet")
    return f"{words}; rollouts that fail so are unscored"
