"""A recipe of rounds: the stages of iterated learning from feedback, each an ordinary recipe or a list of questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError

from ascent.cells import nearest
from ascent.config.renamed import check_renamed
from ascent.config.schema import LAST_SEED, MOST, Real, Section, Whole, leaves
from ascent.config.validate import explain

MOST_ROUNDS = 1000
KEY = "rounds"  # only recipes of rounds have it
STAGES = ("sft", "reward_model", "policy")  # each an ordinary recipe


class Collect(Section):
    """What is asked in every round, and who answers."""

    prompts: str = Field(min_length=1, description="What the policy is asked, given as for data.train.")
    annotator: str = Field(
        "person",
        min_length=1,
        description="Who judges: person, a model, an endpoint, simulated:TASK, file.py:function.",
    )
    form: Literal["pairs", "rankings", "ratings"] = Field("pairs", description="What the annotator is asked for.")
    samples: Whole = Field(4, ge=2, le=10**4, description="Answers to each prompt.")
    per_prompt: Whole = Field(1, ge=1, le=10**6, description="Pairs asked about for each prompt.")
    repeat: Real = Field(0.0, ge=0, le=1, description="Share of questions asked again, the other way round.")
    max_new_tokens: Whole = Field(256, ge=1, le=MOST, description="Token budget of an answer.")
    temperature: Real = Field(1.0, gt=0, le=1000, description="Divides the logits.")


class Measure(Section):
    """How the policy of every round is compared with the first one."""

    prompts: str = Field(min_length=1, description="What both are asked; a built-in task's held-out split unless told.")
    judge: str = Field(min_length=1, description="Who judges, as for collect.annotator; not a person.")
    samples: Whole = Field(1, ge=0, le=10**4, description="Drawn answers to each prompt; 0: one greedy answer.")
    max_new_tokens: Whole = Field(256, ge=1, le=MOST, description="Token budget of an answer.")


class IterateConfig(Section):
    """Fine-tune, then in every round: collect, train a reward model, train the policy, measure."""

    rounds: Whole = Field(ge=1, le=MOST_ROUNDS, description="How many rounds.")
    seed: Whole = Field(
        0,
        ge=0,
        le=LAST_SEED - MOST_ROUNDS,
        description="The same seed gives the same bits; round n trains with seed + n.",
    )
    sft: str | dict[str, Any] = Field(description="The recipe of the first policy, or a model that is there already.")
    collect: Collect = Field(description="What is asked in every round, and who answers.")
    reward_model: dict[str, Any] | None = Field(
        None,
        description="The recipe of the reward model; null where the policy learns from the comparisons themselves.",
    )
    policy: dict[str, Any] = Field(description="The recipe of the policy: ppo and the like, or dpo and the like.")
    measure: Measure | None = Field(
        None, description="How the policy is compared with the first one; null: not at all."
    )


def iterate_config(mapping: Mapping[str, Any], name: str) -> IterateConfig:
    """The recipe a mapping stands for; ValueError with one line for each thing that is wrong."""
    if KEY not in mapping:
        raise ValueError(f"{name} is no recipe of rounds: it has no key 'rounds'; ascent train runs ordinary recipes")
    for stage in STAGES:
        if isinstance(mapping.get(stage), Mapping):
            check_renamed(mapping[stage], f"{name}: {stage}: ")
    try:
        return IterateConfig.model_validate(dict(mapping))
    except ValidationError as error:
        lines = [f"{name}: {_said(each)}" for each in error.errors(include_url=False)]
        raise ValueError("\n".join(dict.fromkeys(lines))) from None


def _said(problem: Any) -> str:
    if problem["type"] != "extra_forbidden":
        return explain(problem)
    path = ".".join(map(str, problem["loc"]))
    known = [*IterateConfig.model_fields, *leaves(IterateConfig)]
    return f"{path} is not a key of a recipe of rounds; {nearest(path, known)}"
