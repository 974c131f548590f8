"""Recipes of `ascent iterate`: the stages of iterated learning from feedback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError

from ascent.cells import nearest
from ascent.config.renamed import check_renamed
from ascent.config.schema import MAX_COUNT, MAX_SEED, Float, Int, Section, leaves
from ascent.config.validate import explain

MAX_ROUNDS = 1000
KEY = "rounds"  # only such recipes have it
STAGES = ("sft", "reward_model", "policy")  # each an ordinary recipe


class Collect(Section):
    """The comparisons of every round, and their annotator."""

    prompts: str = Field(min_length=1, description="Prompts, as for data.train.")
    annotator: str = Field(
        "person",
        min_length=1,
        description="The annotator: person, a model, an endpoint, simulated:TASK, file.py:function.",
    )
    form: Literal["pairs", "rankings", "ratings"] = Field(
        "pairs", description="Form of the feedback."
    )
    samples: Int = Field(4, ge=2, le=10**4, description="Completions per prompt.")
    per_prompt: Int = Field(1, ge=1, le=10**6, description="Pairs per prompt.")
    repeat: Float = Field(
        0.0, ge=0, le=1, description="Share of comparisons repeated in the other order."
    )
    max_new_tokens: Int = Field(
        256, ge=1, le=MAX_COUNT, description="Maximum length of a completion in tokens."
    )
    temperature: Float = Field(1.0, gt=0, le=1000, description="Sampling temperature.")


class Measure(Section):
    """The comparison of each round's policy with the first one."""

    prompts: str = Field(
        min_length=1, description="Prompts; of a built-in task, the held-out split by default."
    )
    judge: str = Field(
        min_length=1, description="The judge, as for collect.annotator; not a person."
    )
    samples: Int = Field(
        1, ge=0, le=10**4, description="Sampled completions per prompt; 0: one greedy completion."
    )
    max_new_tokens: Int = Field(
        256, ge=1, le=MAX_COUNT, description="Maximum length of a completion in tokens."
    )


class IterateConfig(Section):
    """SFT, then in every round: collect comparisons, train a reward model, train the policy, measure."""

    rounds: Int = Field(ge=1, le=MAX_ROUNDS, description="Number of rounds.")
    seed: Int = Field(
        0,
        ge=0,
        le=MAX_SEED - MAX_ROUNDS,
        description="The same seed gives the same bits; round n trains with seed + n.",
    )
    sft: str | dict[str, Any] = Field(
        description="The recipe of the first policy, or an existing model."
    )
    collect: Collect = Field(description="The comparisons of every round, and their annotator.")
    reward_model: dict[str, Any] | None = Field(
        None,
        description="The recipe of the reward model; null: the policy trains on the comparisons.",
    )
    policy: dict[str, Any] = Field(description="The recipe of the policy, such as ppo or dpo.")
    measure: Measure | None = Field(
        None, description="The comparison with the first policy; null: none."
    )


def iterate_config(mapping: Mapping[str, Any], name: str) -> IterateConfig:
    """The validated recipe; ValueError with one line per problem."""
    if KEY not in mapping:
        raise ValueError(
            f"{name} is not a recipe of ascent iterate: it has no key 'rounds'; use ascent train"
        )
    for stage in STAGES:
        if isinstance(mapping.get(stage), Mapping):
            check_renamed(mapping[stage], f"{name}: {stage}: ")
    try:
        return IterateConfig.model_validate(dict(mapping))
    except ValidationError as error:
        lines = [f"{name}: {_explain(each)}" for each in error.errors(include_url=False)]
        raise ValueError("\n".join(dict.fromkeys(lines))) from None


def _explain(problem: Any) -> str:
    if problem["type"] != "extra_forbidden":
        return explain(problem)
    path = ".".join(map(str, problem["loc"]))
    known = [*IterateConfig.model_fields, *leaves(IterateConfig)]
    return f"{path} is not a key of a recipe of ascent iterate; {nearest(path, known)}"
