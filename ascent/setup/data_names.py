"""A name in the data section is a built-in task or a dataset; an error about one that is neither says both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ascent.data.errors import MissingData
from ascent.tasks.named import describe_missing


@contextmanager
def as_dataset(name: str) -> Iterator[None]:
    """Around whatever reads `name` as a dataset, because it is no task: if there is none, a task may be meant."""
    try:
        yield
    except MissingData as error:
        raise MissingData(f"{error}. As a task: {describe_missing(name)}") from None
