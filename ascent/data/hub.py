"""Datasets of the hub, through the cache of `datasets`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ascent.data.errors import MissingData
from ascent.data.rows import Row, table_rows

SECONDS = 10.0  # timeout of the hub


def read_hub(name: str, config: str | None, split: str | None) -> Iterator[Row]:
    """A dataset of the hub, through the cache of `datasets`."""
    return table_rows(_load_hub(name, config, split), f"{name}@{split or 'train'}")


def files_of_hub(name: str, config: str | None, split: str | None) -> list[tuple[Path, str]]:
    """The files of a hub dataset in that cache."""
    files = [Path(each["filename"]) for each in _load_hub(name, config, split).cache_files]
    return [(path, path.name) for path in files]


def _load_hub(name: str, config: str | None, split: str | None) -> Any:
    import datasets  # type: ignore[import-untyped]  # imported late: the import is slow

    _check_reachable(name)
    try:
        return datasets.load_dataset(name, config, split=split or "train")
    except (OSError, ValueError) as error:
        raise MissingData(
            f"{name!r} is no file, no folder and no built-in task here, and as a hub dataset it cannot be read: {error}"
        ) from None


def _check_reachable(name: str) -> None:
    """Fail at once if the hub cannot be reached and nothing is cached; `datasets` would retry for half a minute."""
    import datasets
    import httpx
    from datasets.naming import camelcase_to_snakecase  # type: ignore[import-untyped]
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    owner, slash, last = name.rpartition("/")
    cached = owner + slash.replace("/", "___") + camelcase_to_snakecase(last)
    if (
        datasets.config.HF_HUB_OFFLINE
        or (Path(datasets.config.HF_DATASETS_CACHE).expanduser() / cached).is_dir()
    ):
        return
    try:
        HfApi().dataset_info(name, timeout=SECONDS)
    except (HfHubHTTPError, HFValidationError):
        return  # the hub answered, or will not be asked; `datasets` reports it
    except httpx.TransportError as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise MissingData(
            f"{name!r} is no file, no folder and no built-in task here, and the hub cannot be reached ({reason})"
        ) from None
