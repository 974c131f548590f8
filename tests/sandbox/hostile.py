"""Hostile and wrong programs from the text files of this folder."""

from collections.abc import Mapping
from pathlib import Path


def hostile(names: Mapping[str, str]) -> dict[str, str]:
    """Those of hostile.txt. `names` fills in @SECRET@ and its like, things of this machine."""
    return programs_in("hostile.txt", names)


def programs_in(file: str, names: Mapping[str, str] | None = None) -> dict[str, str]:
    """name -> source, for every section of a file: `### name: what it is`, then the program."""
    text = (Path(__file__).parent / file).read_text()
    for name, value in (names or {}).items():
        text = text.replace(f"@{name}@", value)
    found = {}
    for section in text.split("### ")[1:]:
        head, _, source = section.partition("\n")
        found[head.partition(":")[0]] = source
    return found
