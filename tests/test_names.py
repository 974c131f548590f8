"""The words of before are gone: files, code, batch fields, recipe keys, metrics and phrases.

The list is that of the renaming (docs/decisions/0013). History (CHANGELOG.md, docs/decisions) keeps the
names of its time, and `ascent/config/renamed.py` must know the old keys to name the new ones.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascent.config.renamed import KEYS
from ascent.config.schema import leaves
from ascent.metrics import REGISTRY

ROOT = Path(__file__).parents[1]
HISTORY = (
    "CHANGELOG.md",
    "docs/decisions/",
    "ascent/config/renamed.py",
    "tests/config/test_renamed.py",
)
HERE = "tests/test_names.py"

FILES = {
    "": "build own_files compiled bounds",
    "update": "local whole taught judged batches reference",
    "models": "alike quiet seams check source token_scores distributions paged paged_cpu paged_cuda paged_sdpa",
    "engines": "noise mixture native/pages native/rows native/host native/recorded native/history native/kernels",
    "rollouts": "told waiting turns control credit opponent collect",
    "advantages": "select shape group normalise credit",
    "losses": "gates sequence_gates focus mismatch rejection absolute transport unpaired shared_length aggregate"
    " controllers",
    "maths": "tally scan",
    "runs": "keep lines answers",
    "checkpoints": "pieces",
    "algorithms": "files policies teachers",
    "feedback": "winning ledger questions",
    "data": "fields layouts",
}
# Names of classes and functions; of `rollouts` and `update` only, where the word is used elsewhere in its plain sense.
DEFINITIONS = {
    "": """Talk Talking Arriving Steering Waiting Inferring Beside Judged Gated stand_in credited informative
    bootstrapped race lend forget_prompts silence_modules silence_config refuse_other_words thumb told alike
    token_scores""",
    "rollouts": "Asked Settings Plan pick cut joined parts_of counted_parts recorded",
    "update": "coupled coupling carried beside joined cut on_device",
    "maths": "spread from_the_right",
}
FIELDS = (
    "old_T rollout_T reference_T reference_B teacher_T trained_T chances_B parts_BK part_weights_BK"
)
METRICS = """reward_spread groups_without_signal advantage_spread advantage_largest groups_of_one kl_to_old
kl_to_reference_k3 kl_to_reference_k1 clipped_low clipped_high ratio_largest ratio_smallest ratio_guarded kl_coefficient
length_largest mismatch_largest mismatch_weight mismatch_effective staleness_largest trained_tokens"""
PHRASES = (
    "begin with alike",
    "looks of the host",
    "Who is sent together",
    "without any signal stop",
    "its noise is its own",
    "a past the run was taken back from",
)


def texts(*suffixes: str) -> Iterator[tuple[str, str]]:
    for folder in ("ascent", "tests", "docs", "examples", "bench"):
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            kept = path.suffix in suffixes and not name.startswith(
                (*HISTORY, "bench/results", "bench/peers")
            )
            if kept and name != HERE:
                yield name, path.read_text(encoding="utf-8")
    for name in ("README.md", "CONTRIBUTING.md"):
        yield name, (ROOT / name).read_text(encoding="utf-8")


def found(pattern: str, *suffixes: str) -> list[str]:
    expression = re.compile(pattern)
    return [
        f"{name}:{text.count(chr(10), 0, hit.start()) + 1}: {hit.group()}"
        for name, text in texts(*suffixes)
        for hit in expression.finditer(text)
    ]


@pytest.mark.parametrize("package", FILES)
def test_no_file_has_its_old_name(package: str) -> None:
    for name in FILES[package].split():
        path = ROOT / "ascent" / package / name
        assert not path.exists() and not path.with_suffix(".py").exists(), path


@pytest.mark.parametrize("package", DEFINITIONS)
def test_no_class_or_function_has_its_old_name(package: str) -> None:
    old = set(DEFINITIONS[package].split())
    left = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {name}"
        for path in sorted((ROOT / "ascent" / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (name := defined(node)) in old
    ]
    assert left == []


def defined(node: ast.AST) -> str | None:
    """The class, function or annotated field that a node defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return node.name
    return (
        node.target.id
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        else None
    )


def test_no_batch_field_has_its_old_name() -> None:
    assert found(rf"(?<!\w)({'|'.join(FIELDS.split())})(?!\w)", ".py", ".md") == []


def test_no_recipe_key_has_its_old_name() -> None:
    assert [key for key in KEYS if key in leaves()] == []
    dotted = [re.escape(key) for key in KEYS if "[]" not in key]
    assert found(rf"(?<![\w.])({'|'.join(dotted)})(?!\w)", ".py", ".md", ".yaml") == []


def test_no_metric_has_its_old_name() -> None:
    old = METRICS.split()
    assert [each.name for each in REGISTRY if each.name in old] == []
    apart = ("ascent/classic", "tests/classic", "docs/foundations", "ascent/cli/classic")
    assert [
        each
        for each in found(rf"[\"'`]({'|'.join(old)})[\"'`]", ".py", ".md")
        if not each.startswith(apart)
    ] == []


def test_no_riddle_is_left() -> None:
    assert found("|".join(map(re.escape, PHRASES)), ".py", ".md") == []
