"""`data.evaluate` as a share of the training data."""

from __future__ import annotations


def heldout_share(value: str | None) -> float | None:
    """The share that data.evaluate holds out of data.train: 0.05 for "5%"; None where it names a dataset."""
    if value is None or not value.endswith("%"):
        return None
    try:
        share = float(value.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ValueError("it must be a dataset, or a share above 0% and below 100%, such as 5%")
    return share


def check_evaluate(value: str | None) -> str | None:
    """A validator of data.evaluate."""
    heldout_share(value)
    return value
