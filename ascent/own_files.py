"""Python files that users bring (`file.py:NAME`): read once, under a name of their own."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import Any


def names_in(owner: str, path: Path) -> dict[str, Any]:
    """What the file defines. `owner` begins the error where there is none."""
    path = path.expanduser().resolve()
    if not path.is_file():
        raise ValueError(f"{owner}: there is no file {path}")
    # Path and text are part of the name: two files called rewards.py do not meet, one that was changed is read again.
    # And the module stays findable, so that what it defines can be pickled.
    mark = hashlib.sha256(str(path).encode() + path.read_bytes()).hexdigest()[:8]
    module_name = f"ascent_own_{path.stem}_{mark}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:  # whatever it was rises; a half-made module must not stay behind
            del sys.modules[module_name]
            raise
    return vars(sys.modules[module_name])
