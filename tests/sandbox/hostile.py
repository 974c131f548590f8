"""The hostile programs of hostile.txt, with the names of things on this machine filled in."""

from collections.abc import Mapping
from pathlib import Path


def hostile(names: Mapping[str, str]) -> dict[str, str]:
    """name -> source. `names` fills in @SECRET@ and its like."""
    text = (Path(__file__).parent / "hostile.txt").read_text()
    for name, value in names.items():
        text = text.replace(f"@{name}@", value)
    found = {}
    for section in text.split("### ")[1:]:
        head, _, source = section.partition("\n")
        found[head.partition(":")[0]] = source
    return found
