"""Shell completion of recipes, algorithms and runs. Nothing here imports torch."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path


def recipe_names(incomplete: str) -> list[str]:
    """Shipped recipes, algorithms, and .yaml files below the typed folder."""
    from ascent.config.load import shipped_recipes

    names = [name for name in shipped_recipes() if name.startswith(incomplete)]
    names = list(dict.fromkeys((*names, *algorithm_names(incomplete))))
    return names + [path for path in _paths(incomplete) if path.endswith(("/", ".yaml", ".yml"))]


def algorithm_names(incomplete: str) -> list[str]:
    """Rows of the table, read from its source: importing the table imports torch."""
    found: set[str] = set()
    for file in resources.files("ascent").joinpath("algorithms").iterdir():
        if file.name.endswith(".py"):
            found |= set(
                re.findall(r'^ *name="(\w+)",$', file.read_text(encoding="utf-8"), re.MULTILINE)
            )
    return sorted(name for name in found if name.startswith(incomplete))


def run_folders(incomplete: str) -> list[str]:
    """Folders with a config.yaml, and folders that may hold some."""
    folders = [path for path in _paths(incomplete) if path.endswith("/")]
    runs = [path.rstrip("/") for path in folders if Path(path, "config.yaml").is_file()]
    return runs or folders


def _paths(incomplete: str) -> list[str]:
    """Entries of the typed folder that begin with what is typed; folders end in a slash."""
    folder, slash, _ = incomplete.rpartition("/")
    root = Path(folder or ("/" if slash else "."))
    if not root.is_dir():
        return []
    entries = [each for each in sorted(root.iterdir()) if not each.name.startswith(".")]
    paths = [f"{folder}{slash}{each.name}{'/' if each.is_dir() else ''}" for each in entries]
    return [path for path in paths if path.startswith(incomplete)]
