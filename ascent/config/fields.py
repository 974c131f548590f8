"""The types of the values in a recipe."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _check_scalar(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str):
        raise ValueError("it must be a number, true, false or a word")
    return check_size(value)


def check_size(value: Any) -> Any:
    """Refuse numbers too large for a float, also inside lists; infinity is allowed and means no bound."""
    for each in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        check_size(each)
    if isinstance(value, int | float) and MAX_FLOAT < abs(value) != math.inf:
        raise ValueError(f"it must be a number within {MAX_FLOAT:g}")
    return value


# Strict: a quoted number, or `true` in place of a number, is an error.
Int = Annotated[int, Field(strict=True)]
Float = Annotated[float, Field(strict=True, allow_inf_nan=False)]
# Every number has an upper bound; by default: token offsets of 32 bits, products in float32, seeds of torch.
MAX_COUNT, MAX_FLOAT, MAX_SEED = 10**9, 1e30, 2**63 - 1
Bool = Annotated[bool, Field(strict=True)]
Scalar = Annotated[Any, AfterValidator(_check_scalar)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
