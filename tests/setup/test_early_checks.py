"""Names that nothing stands for are refused before anything is hashed or loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ascent
from ascent.api import check
from ascent.config.validate import validate
from ascent.plan.resolve import resolve
from ascent.setup import fingerprints
from ascent.setup.early_checks import check_names


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"data.train": "nowhere.jsonl"}, "no file or folder at nowhere.jsonl"),
        ({"data.train": "gsm8k:/nowhere"}, "no file or folder at gsm8k:/nowhere"),
        ({"data.evaluate": "./nowhere"}, r"no file or folder at \./nowhere"),
        ({"model.policy": "/nowhere"}, r"model\.policy: model='/nowhere' does not exist"),
        (
            {"model.reference": "/nowhere", "algorithm": "grpo"},
            r"model\.reference: model='/nowhere' does not exist",
        ),
        (
            {"rewards": [{"use": "mathematic"}]},
            r"rewards\[0\]: no reward named 'mathematic'; did you mean mathematics",
        ),
        (
            {"rewards": [{"use": "mathematics"}, {"use": "format", "patern": "x"}]},
            r"rewards\[1\]: .* no option patern",
        ),
        (
            {"rewards": [{"use": "nowhere.py:f"}]},
            r"rewards\[0\]: reward nowhere\.py:f: there is no file",
        ),
        ({"env": {"use": "tool"}}, "no env named 'tool'; did you mean tools"),
    ],
)
def test_it_is_refused_before_anything_is_read(
    changed: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprints, "sha256", lambda path: pytest.fail(f"{path} was hashed"))
    recipe = {
        "algorithm": "rlvr",
        "model.policy": "tiny:llama",
        "data.train": "sort_digits:8",
        "run.steps": 1,
        "rewards": [{"use": "verifier"}],
    }
    with pytest.raises(ValueError, match=words):
        ascent.train(recipe | changed, run=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(check, "assemble", lambda *_: pytest.fail("it was loaded"))
    with pytest.raises(ValueError, match=words):
        ascent.check(recipe | changed, progress=False)


def test_no_reward_is_made(tmp_path: Path) -> None:
    code = """
class Costly:
    def __init__(self, *, port=1):
        raise RuntimeError("it was made")
"""
    (tmp_path / "own.py").write_text(code)
    reward = {"use": f"{tmp_path / 'own.py'}:Costly"}
    recipe = {
        "algorithm": "rlvr",
        "model": {"policy": "tiny:llama"},
        "data": {"train": "sort_digits:8"},
        "run": {"steps": 1},
    }
    check_names(resolve(validate({**recipe, "rewards": [{**reward, "port": 2}]})))
    with pytest.raises(
        ValueError, match=r"rewards\[0\]: reward .*Costly has no option prot; it has port"
    ):
        check_names(resolve(validate({**recipe, "rewards": [{**reward, "prot": 2}]})))
