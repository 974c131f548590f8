"""What several of these files need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Studies share the cores with other tests; and their figures then do not depend on how many there are."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where studies run. A folder named by ASCENT_LEARNING is kept: what was finished there is not trained again."""
    named = os.environ.get("ASCENT_LEARNING")
    folder = Path(named) if named else tmp_path_factory.mktemp("studies")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
