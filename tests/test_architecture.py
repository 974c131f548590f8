"""The house rules that a reader of one file cannot see: who may import whom, names, where tests live.

The rules are functions over a root folder, so that the second half of this file can show that each catches a planted
violation. When a rule stops you, the code usually wants to live one layer lower, or to be passed in as an argument.
"""

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import ascent

ROOT = Path(__file__).parents[1]

# Top imports down, never up; parts of one layer never import each other.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("api",),
    ("view",),
    ("setup",),
    ("plan", "diagnose"),
    ("loop",),
    ("rollouts", "scale", "feedback"),
    ("engines", "update"),
    ("data", "rewards", "envs", "tasks", "models", "checkpoints", "runs"),
    ("sandbox", "parallel"),
    ("algorithms",),
    ("advantages", "losses"),
    ("maths",),
    ("protocols",),
    ("records", "config"),
    ("cells",),
    (
        "metrics",
        "advice",
        "parameter_ranges",
        "c_extension",
        "http_client",
        "http_server",
        "plugins",
        "progress",
        "distribution",
    ),
    ("open_files",),
)
DEPTH = {part: depth for depth, layer in enumerate(LAYERS) for part in layer}

# Tighter than the layers: these parts see nothing of the package but what is named here.
ONLY = {
    "view": {"runs", "feedback", "diagnose", "metrics"},
    "loop": {"protocols", "records", "progress"},
    "algorithms": {"advantages", "losses", "maths", "cells", "parameter_ranges"},
    "advantages": {"maths", "cells", "parameter_ranges"},
    "losses": {"maths", "cells", "parameter_ranges"},
    "maths": {"cells", "parameter_ranges"},
    "classic": {"maths", "advantages", "losses"},
}

# Libraries from outside; what is not named uses the standard library alone. None: anything.
OUTSIDE: dict[str, set[str] | None] = {
    "cli": {"typer", "rich"},
    "view": {"starlette", "uvicorn", "numpy", "markdown_it"},
    "api": None,
    "setup": None,
    "plan": None,
    "rollouts": {"torch"},
    "scale": {"ray", "torch"},
    "engines": {"torch", "transformers", "numpy"},
    "update": {"torch", "safetensors"},
    "data": {"torch", "transformers", "tokenizers", "datasets", "numpy"},
    "models": {"torch", "transformers", "safetensors", "peft"},
    "checkpoints": {"torch", "safetensors", "numpy"},
    "parallel": {"torch"},
    "runs": {"rich", "matplotlib", "tensorboard", "wandb"},
    "advantages": {"torch"},
    "losses": {"torch"},
    "maths": {"torch"},
    "config": {"pydantic", "yaml"},
    "records": {"pydantic"},
    "classic": {"torch", "numpy", "gymnasium", "matplotlib"},
}
OUTSIDE_OF_FILES = {
    "data/hub.py": {"huggingface_hub", "httpx"},
    "engines/vllm.py": {"vllm"},
    "engines/native/sampling_triton.py": {"triton"},
    "models/locate.py": {"huggingface_hub", "httpx"},
    "models/exact_attention_cuda.py": {"triton"},
    "models/exact_decode_cuda.py": {"triton"},
    "models/exact_head_cuda.py": {"triton"},
    "models/exact_linear_cuda.py": {"triton"},
    "models/gated_mlp_cuda.py": {"triton"},
    "models/head_cuda.py": {"triton"},
    "models/norm_cuda.py": {"triton"},
    "models/quantize.py": {"bitsandbytes"},
    "models/paged_attention_cuda.py": {"triton"},
    "models/rotary_cuda.py": {"triton"},
    "models/sampling_noise_cuda.py": {"triton"},
    "models/softmax_sums_cuda.py": {"triton"},
    "models/segment_sum_cuda.py": {"triton"},
    "update/accumulate_cuda.py": {"triton"},
    "rewards/checker.py": {"math_verify"},
    "tasks/reasoning.py": {"reasoning_gym"},
    "cli/doctor.py": {"torch"},  # it reports on torch
    "cli/startup.py": {"torch", "transformers"},  # it shortens the import of transformers
}

VAGUE = {"utils", "util", "helpers", "helper", "common", "misc"}
# Folders of tests that belong to no folder of the package.
ACROSS = {"golden", "end_to_end", "gpu", "regression"}


class Import(NamedTuple):
    target: str
    line: int
    typing_only: bool


def python_files(root: Path) -> list[Path]:
    return sorted((root / "ascent").rglob("*.py"))


def imports(path: Path, root: Path) -> Iterator[Import]:
    """Every import in a file, at any depth, by its full dotted name; constant import_module calls included."""
    tree = ast.parse(path.read_text(), str(path))
    guarded = {
        id(inner) for node in ast.walk(tree) if _for_typing(node) for inner in ast.walk(node)
    }
    package = path.relative_to(root).with_suffix("").parts[:-1]
    for node in ast.walk(tree):
        for target in _targets(node, package):
            yield Import(target, node.lineno, id(node) in guarded)


def _for_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _targets(node: ast.AST, package: tuple[str, ...]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        start = package[: len(package) - node.level + 1] if node.level else ()
        module = ".".join([*start, *([node.module] if node.module else [])])
        return (
            [f"{module}.{alias.name}" for alias in node.names] if module == "ascent" else [module]
        )
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
        ("import_module", "__import__")
    ):
        return [
            arg.value
            for arg in node.args[:1]
            if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
        ]
    return []


def import_violations(root: Path) -> list[str]:
    found = []
    for path in python_files(root):
        inside = path.relative_to(root / "ascent")
        part = inside.with_suffix("").parts[0]
        if part == "__init__":
            part = ""  # the package's own front door: it names everything, lazily
        elif part != "classic" and part not in DEPTH:
            found.append(f"ascent/{inside}: {part} is in no layer")
            continue
        for each in imports(path, root):
            broken = _broken_rule(part, inside, each)
            if broken:
                found.append(f"ascent/{inside}:{each.line}: {broken}")
    return found


def _broken_rule(part: str, inside: Path, each: Import) -> str | None:
    top, _, rest = each.target.partition(".")
    if top != "ascent":
        return _broken_outside(part, inside, each, top)
    other = rest.partition(".")[0]
    if other in (part, "__version__") or part == "":
        return None
    if other not in DEPTH and other != "classic":
        return f"{each.target}: inside the package, import from the module itself, not from ascent"
    if part in ONLY:
        return None if other in ONLY[part] else f"{part} may not import {other}"
    if other == "classic":
        return None if part in ("cli", "build") else f"{part} may not import classic"
    return (
        None
        if DEPTH[other] > DEPTH[part]
        else f"{part} may not import {other}, which is not below it"
    )


def _broken_outside(part: str, inside: Path, each: Import, top: str) -> str | None:
    allowed = OUTSIDE.get(part, set())
    if allowed is None or top in sys.stdlib_module_names or each.typing_only:
        return None
    return (
        None
        if top in allowed | OUTSIDE_OF_FILES.get(str(inside), set())
        else f"{part or 'ascent'} may not use {top}"
    )


def name_violations(root: Path) -> list[str]:
    every = [path for folder in ("ascent", "tests") for path in (root / folder).rglob("*.py")]
    found = [
        f"{path.relative_to(root)}: the name says nothing" for path in every if path.stem in VAGUE
    ]
    return found + [
        f"{path.relative_to(root)}: recipes hold no code"
        for path in (root / "ascent/recipes").rglob("*.py")
    ]


def folder_violations(root: Path) -> list[str]:
    """tests/losses tests ascent/losses, tests/bench tests bench; a file beside these folders tests all."""
    found = []
    for path in sorted((root / "tests").rglob("test_*.py")):
        folder = path.relative_to(root / "tests").parent
        if folder == Path() or folder.parts[0] in ACROSS:
            continue
        if not (root / "ascent" / folder).is_dir() and not (root / folder).is_dir():
            found.append(f"{path.relative_to(root)}: there is no ascent/{folder}")
    return found


def circle_violations(root: Path) -> list[str]:
    """Files that import each other in a circle, also inside functions; imports for types alone do not count."""
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts): path for path in python_files(root)
    }
    graph: dict[str, set[str]] = {name: set() for name in files}
    for name, path in files.items():
        tree = ast.parse(path.read_text())
        guarded = {
            id(inner) for node in ast.walk(tree) if _for_typing(node) for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if id(node) not in guarded:
                aliases = (
                    [f".{alias.name}" for alias in node.names]
                    if isinstance(node, ast.ImportFrom)
                    else []
                )
                for target in _targets(node, tuple(name.split(".")[:-1])):
                    graph[name] |= {f"{target}{end}" for end in ("", *aliases)} & files.keys()
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [
            " imports ".join(f"{name.replace('.', '/')}.py" for name in reversed(error.args[1]))
        ]
    return []


RULES = (import_violations, name_violations, folder_violations, circle_violations)


@pytest.mark.parametrize("rule", RULES)
def test_the_house_is_in_order(rule):
    assert rule(ROOT) == []


PUBLIC = {
    "__version__",
    *("TABLE", "Row", "Cell"),
    *("Config", "Plan", "load_config", "resolve"),
    *(
        "Message",
        "Prompt",
        "Completion",
        "Rollout",
        "Group",
        "Example",
        "Pair",
        "Ranking",
        "UnpairedExample",
    ),
    *("train", "resume", "iterate", "check"),
    *("evaluate", "compare", "sample", "score", "export", "collect"),
    *("Policy", "add_advantages", "batches", "load_data"),
    *("sweep", "compare_runs"),
    *("diagnose_run", "replay", "bisect", "forecast", "forecast_score"),
}


def test_public_names_are_pinned():
    assert set(dir(ascent)) == PUBLIC
    for name in PUBLIC:
        assert getattr(ascent, name) is not None
    with pytest.raises(AttributeError, match="no public name 'utils'"):
        _ = ascent.utils


PLANTED = [
    (
        import_violations,
        "ascent/maths/a.py",
        "from ascent.losses import kl",
        "maths may not import losses",
    ),
    (
        import_violations,
        "ascent/maths/a.py",
        "import ascent.losses.kl",
        "maths may not import losses",
    ),
    (
        import_violations,
        "ascent/maths/a.py",
        "from ..losses import kl",
        "maths may not import losses",
    ),
    (
        import_violations,
        "ascent/maths/a.py",
        "def f():\n    from ascent.losses import kl",
        "maths may not import losses",
    ),
    (
        import_violations,
        "ascent/losses/a.py",
        "from ascent.advantages import group_baselines",
        "losses may not import advantages",
    ),
    (
        import_violations,
        "ascent/losses/a.py",
        "from ascent.config import schema",
        "losses may not import config",
    ),
    (import_violations, "ascent/losses/a.py", "from ascent import TABLE", "not from ascent"),
    (import_violations, "ascent/losses/a.py", "import ascent", "not from ascent"),
    (
        import_violations,
        "ascent/data/a.py",
        "from ascent import rewards",
        "data may not import rewards",
    ),
    (
        import_violations,
        "ascent/data/a.py",
        "from ascent.loop import run",
        "data may not import loop",
    ),
    (
        import_violations,
        "ascent/loop.py",
        "from ascent.update import learner",
        "loop may not import update",
    ),
    (
        import_violations,
        "ascent/view/a.py",
        "from ascent.records import Prompt",
        "view may not import records",
    ),
    (
        import_violations,
        "ascent/classic/a.py",
        "from ascent.update import learner",
        "classic may not import update",
    ),
    (
        import_violations,
        "ascent/data/a.py",
        "from ascent.classic import maze",
        "data may not import classic",
    ),
    (
        import_violations,
        "ascent/data/a.py",
        "import importlib\nimportlib.import_module('ascent.plan')",
        "data may not import plan",
    ),
    (
        import_violations,
        "ascent/records.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ascent.protocols import Env",
        "records may not import protocols",
    ),
    (import_violations, "ascent/records.py", "import torch", "records may not use torch"),
    (import_violations, "ascent/config/a.py", "import torch.nn", "config may not use torch"),
    (import_violations, "ascent/cli/a.py", "import torch", "cli may not use torch"),
    (import_violations, "ascent/rewards/a.py", "import torch", "rewards may not use torch"),
    (import_violations, "ascent/engines/a.py", "import vllm", "engines may not use vllm"),
    (
        import_violations,
        "ascent/parameter_ranges.py",
        "import numpy",
        "parameter_ranges may not use numpy",
    ),
    (import_violations, "ascent/algorithms/a.py", "import torch", "algorithms may not use torch"),
    (import_violations, "ascent/__init__.py", "import torch", "ascent may not use torch"),
    (import_violations, "ascent/stray.py", "", "stray is in no layer"),
    (name_violations, "ascent/maths/utils.py", "", "the name says nothing"),
    (name_violations, "tests/helpers.py", "", "the name says nothing"),
    (name_violations, "ascent/recipes/a.py", "", "recipes hold no code"),
    (folder_violations, "tests/gone/test_a.py", "", "there is no ascent/gone"),
    (
        circle_violations,
        "ascent/losses/loss.py",
        "from . import kl",
        "ascent/losses/kl.py imports ascent/losses/loss.py",
    ),
    (
        circle_violations,
        "ascent/losses/loss.py",
        "def f():\n    from ascent.losses.kl import x",
        "ascent/losses/kl.py imports ascent/losses/loss.py",
    ),
]
SOUND = {
    "ascent/__init__.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ascent.plan import resolve",
    "ascent/plan/__init__.py": "import torch, anything\nfrom ascent.algorithms import TABLE",
    "ascent/cli/main.py": "import typer\nfrom ascent import __version__\nfrom ascent.plan import resolve",
    "ascent/cli/doctor.py": "def gpu():\n    import torch",
    "ascent/engines/vllm.py": "import vllm",
    "ascent/losses/kl.py": "import math\nimport torch\nfrom ascent.losses import loss\nfrom ascent.maths import masked",
    "ascent/losses/loss.py": "from ..maths import masked",
    "ascent/maths/masked.py": "def f():\n    x = 1",
    "ascent/protocols.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch import Tensor",
    "ascent/recipes/a.yaml": "algorithm: sft",
    "tests/losses/test_kl.py": "",
    "examples/one_file/grpo.py": "",
    "tests/examples/one_file/test_grpo.py": "",
    "tests/golden/test_anything.py": "",
    "tests/test_whole.py": "",
    "tests/batches.py": "",
}


def plant(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize("rule", RULES)
def test_a_sound_house_passes(rule, tmp_path):
    assert rule(plant(tmp_path, SOUND)) == []


@pytest.mark.parametrize(("rule", "name", "text", "words"), PLANTED)
def test_a_planted_violation_is_found(rule, name, text, words, tmp_path):
    found = rule(plant(tmp_path, SOUND | {name: text}))
    assert len(found) == 1
    assert name in found[0]
    assert words in found[0]
