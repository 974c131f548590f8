"""Builds the environment session of multi-turn rollouts from the recipe's `env` section."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ascent.config.yaml_text import read
from ascent.data.load import LoadResult
from ascent.data.render import Renderer
from ascent.envs.registry import EnvFactory, bind_env, find_env
from ascent.records import Message, Prompt
from ascent.rollouts.multi_turn import EnvSession, Limits
from ascent.setup.objects import NO_OBJECTS, Objects, label_of

EPISODE_KEYS = tuple(inspect.signature(Limits).parameters)


def as_section(
    given: str | Mapping[str, Any] | None,
    option: str = "--env",
    example: str = "{use: tools, tools: [calculator]}",
) -> Mapping[str, Any] | None:
    """An option as a recipe section: a name or a YAML mapping from the command line, a mapping from Python."""
    if given is None:
        return None
    value = read(given, option) if isinstance(given, str) else given
    if isinstance(value, str):
        return {"use": value}
    if not isinstance(value, Mapping) or not isinstance(value.get("use"), str):
        raise ValueError(f"{option} {given!r}, but it is a name, or a section such as '{example}'")
    return value


def family_of(
    section: Mapping[str, Any], objects: Objects = NO_OBJECTS
) -> tuple[EnvFactory, Limits]:
    """A section `{use: ..., max_turns: ..., OPTIONS}`: the environments, and the limits of an episode."""
    options = {key: value for key, value in section.items() if key != "use"}
    limits = {key: options.pop(key) for key in EPISODE_KEYS if key in options}
    for key, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"env.{key}={value!r}, but it must be a number")
    use = str(section["use"])
    if use in objects:
        return bind_env(label_of(use), objects[use].value, options), Limits(**limits)
    return find_env(use, **options), Limits(**limits)


def env_session(
    section: Mapping[str, Any],
    renderer: Renderer,
    max_new_tokens: int,
    objects: Objects = NO_OBJECTS,
) -> EnvSession:
    """ValueError where a turn has no room, or the model's template cannot carry a conversation."""
    family, limits = family_of(section, objects)
    if limits.room(max_new_tokens) < max_new_tokens:
        raise ValueError(
            f"env.max_tokens={limits.max_tokens} leaves no room for one turn of {max_new_tokens} tokens "
            "(rollouts.max_new_tokens); raise one or lower the other"
        )
    refusals = [refusal for role in ("user", "tool") if (refusal := _refusal(renderer, role))]
    if len(refusals) == 2:
        raise ValueError(f"env {family.name}: {refusals[0]}")
    return EnvSession(
        family,
        renderer.between_turns,
        renderer.escape_control_tokens,
        limits,
        family.close,
        renderer.context,
    )


def _refusal(renderer: Renderer, role: Any) -> str:
    """Why a conversation cannot go on with a message of this role; empty where it can."""
    try:
        renderer.between_turns(
            [Message("user", "?"), Message("assistant", "!"), Message(role, "?")]
        )
    except ValueError as error:
        return str(error)
    return ""


def open_environment(
    records: LoadResult, session: EnvSession | None
) -> tuple[LoadResult, dict[str, Prompt]]:
    """Each prompt as its environment opens it, and the original prompts by id."""
    if session is None:
        return records, {}
    prompts: Sequence[Any] = records.records
    made_from = {prompt.id: prompt for prompt in prompts}
    if len(made_from) < len(prompts):
        raise ValueError(
            f"{records.name}: {len(prompts)} prompts have only {len(made_from)} ids; name each apart"
        )
    first = tuple(session.make(prompt).first() for prompt in prompts)
    renamed = next(
        (each.id for each, prompt in zip(first, prompts, strict=True) if each.id != prompt.id), None
    )
    if renamed is not None:
        raise ValueError(
            f"an environment renamed its prompt to {renamed!r}; first() keeps the prompt's id"
        )
    first = tuple(
        replace(each, columns=prompt.columns) for each, prompt in zip(first, prompts, strict=True)
    )
    return replace(records, records=first), made_from
