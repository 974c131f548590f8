"""What a golden test records about itself, and the summary of it at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.golden.summary import PROPERTY, pytest_terminal_summary

__all__ = ["count", "pytest_terminal_summary"]


@pytest.fixture
def count(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Records the class of a case, its reasons and how many numbers were compared."""
    return lambda **fields: record_property(PROPERTY, fields)
