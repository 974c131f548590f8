"""Two functions have one fingerprint exactly if they do the same with the same values."""

from __future__ import annotations

import functools
import re
import sys
import threading
import xmlrpc.client
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ascent.plugins import load_names
from ascent.setup.code_fingerprints import code_content


def defined(tmp_path: Path, text: str, name: str = "f") -> Any:
    """A function of a file, as of a script that is run again."""
    path = tmp_path / f"code_{len(list(tmp_path.iterdir()))}.py"
    path.write_text(text)
    return load_names("test", path)[name]


def content(tmp_path: Path, text: str) -> dict[str, str]:
    return code_content(defined(tmp_path, text))[0]


BASE = """
import math
LIMIT = {"most": 3, "words": ["a", "b"], "set": {"x", "y", "z"}}
def helper(x):
    return x + 1
def f(rollout, *, k=2):
    return helper(LIMIT["most"]) * k + math.pi
"""


def test_lines_files_and_what_is_not_used_do_not_count(tmp_path: Path) -> None:
    moved = "# a comment\n\nOTHER = 1\ndef unused():\n    pass\n" + BASE
    assert content(tmp_path, BASE) == content(tmp_path, moved)


def test_each_thing_that_a_function_uses_counts_under_its_name(tmp_path: Path) -> None:
    base = content(tmp_path, BASE)
    for changed, names in (
        (BASE.replace("k=2", "k=3"), {"f"}),
        (BASE.replace("* k", "+ k"), {"f"}),
        (BASE.replace("x + 1", "x + 2"), {"helper"}),
        (BASE.replace('"most": 3', '"most": 4'), {"LIMIT"}),
        (BASE.replace('["a", "b"]', '["a", "c"]'), {"LIMIT"}),
        (BASE.replace("math.pi", "math.e"), {"f"}),
    ):
        now = content(tmp_path, changed)
        assert {name for name in {**base, **now} if base.get(name) != now.get(name)} == names, (
            changed
        )


def test_closures_partials_instances_and_patterns() -> None:
    def closing(n: int) -> Callable[[Any], int]:
        def g(rollout: Any) -> int:
            return n

        return g

    class Held:
        def __init__(self, value: Any) -> None:
            self.value = value

        def __call__(self, rollout: Any) -> Any:
            return self.value

    def pattern(text: str) -> Any:
        compiled = re.compile(text)
        return lambda rollout: compiled.match(rollout.text)

    def take(rollout: Any, k: int) -> int:
        return k

    makers: tuple[Callable[[Any], Any], ...] = (
        closing,
        Held,
        lambda n: pattern(str(n)),
        lambda n: functools.partial(take, k=n),
        lambda n: closing(n).__call__,
    )
    for make in makers:
        assert code_content(make(1)) == code_content(make(1))
        assert code_content(make(1))[0] != code_content(make(2))[0]


def test_a_module_of_ones_own_counts_by_its_files(tmp_path: Path) -> None:
    sys.path.insert(0, str(tmp_path))
    try:
        found = []
        for value in (1, 2):
            sys.modules.pop("own_helpers", None)
            (tmp_path / "own_helpers.py").write_text(f"def value():\n    return {value}\n")
            found.append(
                content(
                    tmp_path,
                    "import own_helpers\ndef f(rollout):\n    return own_helpers.value()\n",
                )
            )
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("own_helpers", None)
    assert (
        found[0]["own_helpers.py"] != found[1]["own_helpers.py"] and found[0]["f"] == found[1]["f"]
    )


LOCK = threading.Lock()


def test_what_cannot_be_pickled_is_named() -> None:
    def f(rollout: Any) -> float:
        with LOCK:
            return 1.0

    found, unchecked = code_content(f)
    assert unchecked == ("LOCK (lock)",) and "f" in found


def test_a_value_that_refers_to_itself() -> None:
    again: list[Any] = []
    again.append(again)

    def f(rollout: Any) -> Any:
        return again

    def g(n: int) -> Any:
        return g(n - 1) if n else f

    assert code_content(f) == code_content(f) and code_content(g) == code_content(g)


def test_caches_dispatch_slots_and_imports_inside_a_function_count(tmp_path: Path) -> None:
    """Each text once with 1 and once with 2 in place of VALUE."""
    texts = (
        "import functools\n@functools.lru_cache(maxsize=None)\ndef helper(t):\n    return VALUE\n"
        "def f(rollout):\n    return helper(1)\n",
        "import functools\n@functools.singledispatch\ndef helper(t):\n    return 0\n"
        "@helper.register\ndef of_int(t: int):\n    return VALUE\ndef f(rollout):\n    return helper(1)\n",
        "class Limit:\n    __slots__ = ('most', '__least')\n    def __init__(self, n):\n        self.__least = n\n"
        "LIMIT = Limit(VALUE)\ndef f(rollout):\n    return LIMIT.most\n",
        "import torch\nW = torch.tensor([VALUE, 1.0], dtype=torch.bfloat16)\ndef f(rollout):\n    return W[0]\n",
        "import functools\nclass Limit:\n    @functools.cached_property\n    def most(self):\n        return VALUE\n"
        "def f(rollout):\n    return Limit().most\n",
    )
    for text in texts:
        one, again, two = (
            content(tmp_path, text.replace("VALUE", value)) for value in ("1", "1", "2")
        )
        assert one == again != two, text
    inside = "def f(rollout):\n    from inner_helpers import value\n    return value()\n"
    found = []
    for value in ("1", "1", "2"):
        (tmp_path / "inner_helpers.py").write_text(f"def value():\n    return {value}\n")
        found.append(content(tmp_path, inside))
    assert found[0] == found[1] and found[1]["inner_helpers.py"] != found[2]["inner_helpers.py"]


def test_what_answers_every_name_and_what_only_looks_like_dispatch_are_described() -> None:
    proxy = xmlrpc.client.ServerProxy(
        "http://localhost:1"
    )  # has an attribute of any name, each of which has too
    sparse = torch.eye(2).to_sparse()

    def f(rollout: Any) -> Any:
        return proxy, sparse, f

    f.registry = ["a"]  # type: ignore[attr-defined]
    found, unchecked = code_content(f)
    assert {"f", "f.proxy", "f.sparse"} <= set(found) and unchecked == ("f.sparse (Tensor)",)
