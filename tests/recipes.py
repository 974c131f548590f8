"""The smallest recipe of each algorithm, for tests."""

from typing import Any

from ascent.algorithms import TABLE


def least(algorithm: str) -> dict[str, Any]:
    row = TABLE[algorithm]
    recipe: dict[str, Any] = {
        "algorithm": algorithm,
        "model": {"policy": "p"},
        "data": {"train": "t"},
    }
    if row.samples:
        recipe["rewards"] = [{"use": "exact"}]
    if row.needs & {"teacher", "teacher_distribution"}:
        recipe["model"]["teacher"] = "big"
    if "pretraining" in row.needs:
        recipe["data"]["pretraining"] = "text"
    return recipe
