"""A loop of one's own on a GPU gives the recipe's weights, bit for bit, in both dtypes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.api.test_policy import check_grpo

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("parts", [1, 2])
def test_grpo(dtype: str, parts: int, tmp_path: Path) -> None:
    check_grpo(dtype, parts, tmp_path)
