"""Engines by name; what they cannot do is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import ascent
from ascent.api.train import plan_of
from ascent.engines.server_process import vllm_lora_rank
from ascent.setup.generation import refuse_servers
from ascent.setup.samplers import Engine, can_overlap
from tests.engines.served import KEY, served, tiny_folder

URL = "http://host:8000/v1"


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("native", Engine("native")),
        ("vllm", Engine("vllm")),
        (URL, Engine("remote", (URL,))),
        (f"{URL},{URL}2", Engine("remote", (URL, f"{URL}2"))),
        (f"vllm:{URL}", Engine("vllm", (URL,))),
    ],
)
def test_engines_by_name(text: str, engine: Engine) -> None:
    assert Engine.parse(text) == engine


def test_other_names_and_servers_for_two_models_are_refused() -> None:
    with pytest.raises(
        ValueError, match="engine='sglang', but it must be native, hf, remote, vllm, the URLs"
    ):
        Engine.parse("sglang")
    refuse_servers(URL, ["a"]), refuse_servers("vllm", ["a", "b"])
    with pytest.raises(ValueError, match="names servers of one model, but there are 2"):
        refuse_servers(URL, ["a", "b"])


def test_a_server_answers_as_the_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tiny_folder(tmp_path / "m"))
    monkeypatch.setenv("ASCENT_SERVER_KEY", KEY)
    with served(Path(folder)) as server:
        for options in ({"samples": 3}, {"greedy": True}):
            here = list(ascent.sample(folder, ["1+1=", "2+2="], max_new_tokens=6, **options))
            assert (
                list(
                    ascent.sample(
                        folder, ["1+1=", "2+2="], max_new_tokens=6, engine=server.url, **options
                    )
                )
                == here
            )
        local, remote = (
            ascent.evaluate(
                folder, "arithmetic", limit=4, samples=2, max_new_tokens=6, engine=engine
            )
            for engine in ("native", server.url)
        )
        assert remote == local
        other = str(tiny_folder(tmp_path / "other", seed=1))
        with pytest.raises(
            ValueError, match=r"has other weights than the model that is named \(it serves 'tiny'\)"
        ):
            list(ascent.sample(other, ["1+1="], engine=server.url))
        server.ask("/v1/weights", {"version": 1, "folder": other})
        assert list(ascent.sample(other, ["1+1="], max_new_tokens=6, engine=server.url))
        with pytest.raises(ValueError, match="has other weights than the model that is named"):
            ascent.evaluate(folder, "arithmetic", limit=4, max_new_tokens=6, engine=server.url)


@pytest.mark.parametrize(
    ("rollouts", "exact", "cells", "overlaps"),
    [
        ({}, True, {}, False),
        ({"max_staleness": 1}, True, {}, True),
        ({"max_staleness": 1}, False, {}, False),
        ({"max_staleness": 1, "engine": "vllm"}, False, {}, False),
        (
            {"max_staleness": 1, "engine": "vllm"},
            False,
            {"cells.rollout_correction.use": "token_truncate"},
            True,
        ),
    ],
)
def test_what_overlaps(
    rollouts: dict[str, object], exact: bool, cells: dict[str, object], overlaps: bool
) -> None:
    recipe = {
        "algorithm": "grpo",
        "model.policy": "tiny:llama",
        "model.dtype": "float32",
        "data.train": "arithmetic:8",
    }
    keys = {f"rollouts.{name}": value for name, value in rollouts.items()}
    plan = plan_of({**recipe, "rewards": [{"use": "verifier"}], **keys, **cells})
    assert can_overlap(plan, exact=exact) == overlaps


def test_a_rank_beyond_vllms_is_refused_before_anything_is_started() -> None:
    assert [vllm_lora_rank(rank) for rank in (1, 2, 16, 300)] == [1, 8, 16, 320]
    with pytest.raises(ValueError, match="=513, but vLLM takes ranks up to 512; set rollouts"):
        vllm_lora_rank(513)


@pytest.mark.parametrize("more", [{}, {"rollouts.engine": "remote"}, {"model.lora": 4}])
def test_lora_sync_is_for_adapters_on_servers(more: dict[str, object]) -> None:
    recipe = {
        "algorithm": "grpo",
        "model.policy": "tiny:llama",
        "data.train": "arithmetic:8",
        **more,
    }
    with pytest.raises(
        ValueError, match="lora_sync='merged' has no effect: it says how servers get a LoRA adapter"
    ):
        plan_of({**recipe, "rewards": [{"use": "verifier"}], "rollouts.lora_sync": "merged"})
