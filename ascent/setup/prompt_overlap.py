"""Prompts that occur more than once, and held-out prompts that are also trained on: allowed, and said."""

from __future__ import annotations

from collections.abc import Sequence

from ascent.rollouts.generate import RenderedPrompt


def prompt_overlap(
    train: Sequence[RenderedPrompt], heldout: Sequence[RenderedPrompt]
) -> tuple[str, ...]:
    """One sentence for each of the two, where it is the case. Prompts are the same where the policy reads the same."""
    seen = {each.tokens for each in train}
    told = []
    if len(seen) < len(train):
        told.append(
            f"{len(train) - len(seen)} of {len(train)} training prompts repeat another one; each is drawn as often as "
            "it is there, and drawn twice in a step it is two groups"
        )
    both = sum(each.tokens in seen for each in heldout)
    if both:
        told.append(
            f"{both} of {len(heldout)} held-out prompts are also trained on, so they say little about new ones"
        )
    return tuple(told)
