"""The data that flows through the pipeline: frozen dataclasses, checked when made, free of torch."""

from ascent.records.examples import Example, Pair, Ranking, StepExample, UnpairedExample
from ascent.records.rollouts import (
    Completion,
    Ended,
    Episode,
    Group,
    Message,
    Prompt,
    Reply,
    Request,
    Role,
    Rollout,
    RoutedExperts,
    StepReward,
    Stop,
    Turn,
)

__all__ = [
    "Completion",
    "Ended",
    "Episode",
    "Example",
    "Group",
    "Message",
    "Pair",
    "Prompt",
    "Ranking",
    "Reply",
    "Request",
    "Role",
    "Rollout",
    "RoutedExperts",
    "StepExample",
    "StepReward",
    "Stop",
    "Turn",
    "UnpairedExample",
]
