"""What ranks on a cluster get to see, and what is refused before anything is started."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from ascent.api.launch import ray_options, refuse_idle_reward_workers, refuse_idle_samplers
from ascent.plan.load import load_config
from ascent.plan.resolve import resolve
from ascent.runs.reward_worker_files import RewardLaunch
from ascent.runs.sampler_files import LAUNCH
from ascent.scale.options import RayOptions, rank_environment
from ascent.scale.ray_cluster import require_ray


def test_a_rank_has_torchruns_variables_and_its_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv(LAUNCH, "of another run")
    found = rank_environment(1, 4, "10.0.0.2", 29500, threads=2, given={"ASCENT_SERVER_KEY": "k"})
    expected = {
        "RANK": "1",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "10.0.0.2",
        "MASTER_PORT": "29500",
        "OMP_NUM_THREADS": "2",
        "HF_TOKEN": "secret",
        "ASCENT_SERVER_KEY": "k",
    }
    assert expected.items() <= found.items()
    assert LAUNCH not in found and "PATH" not in found


def test_threads_are_those_of_the_cpus_unless_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [RayOptions(cpus=each).threads for each in (0.5, 1, 4)] == [1, 1, 4]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert RayOptions(cpus=8).threads == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ranks": 0}, "processes=0; it must be at least 1"),
        ({"samplers": -1}, "samplers=-1; it must be from 0"),
        ({"reward_workers": -1}, "reward_workers=-1; it must be from 0"),
        ({"cpus": 0.0}, "cpus=0.0; it is the CPUs of each"),
        ({"cpus": float("nan")}, "cpus=nan"),
        ({"gpus": -1.0}, "gpus=-1.0; it is the GPUs of each"),
    ],
)
def test_numbers_out_of_range(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RayOptions(**given)


def test_options_of_ray_need_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ray_options(False, 1, 0, 1.0, None) is None
    assert ray_options(True, 1, 3, 1.0, None, 4) == RayOptions(1, 3, reward_workers=4)
    with pytest.raises(ValueError, match=r"reward_workers=1.*add --ray"):
        ray_options(False, 1, 0, 1.0, None, 1)
    with pytest.raises(ValueError, match=r"samplers=2.*add --ray"):
        ray_options(False, 1, 2, 1.0, None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="use either --ray or torchrun"):
        ray_options(True, 1, 0, 1.0, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sft"], "sft learns from files and samples nothing; leave out --samplers"),
        (["grpo", "rollouts.engine=vllm"], "are ascent serve, but rollouts.engine=vllm"),
        (["grpo", "rollouts.engine=hf"], "are ascent serve, but rollouts.engine=hf"),
        (
            ["grpo", "rollouts.engine=remote", "rollouts.servers=[http://a:1/v1]"],
            "rollouts.servers names servers already",
        ),
    ],
)
def test_samplers_that_would_do_nothing_are_refused(words: list[str], message: str) -> None:
    plan = resolve(load_config(words[0], ["model=tiny:llama", "data=arithmetic:64", *words[1:]]))
    refuse_idle_samplers(plan, 0)
    with pytest.raises(ValueError, match=message):
        refuse_idle_samplers(plan, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sft"], "reward_workers=2, but sft samples nothing; leave out --reward-workers"),
        (["grpo"], r"reward_workers=2, but the rewards \(verifier\) run in the trainer; leave out"),
        (
            ["rloo", "model.reward_model=tiny:llama", "rewards=[]"],
            r"the rewards \(none, or model.reward_model\) run in",
        ),
    ],
)
def test_reward_workers_that_would_do_nothing_are_refused(words: list[str], message: str) -> None:
    plan = resolve(load_config(words[0], ["model=tiny:llama", "data=arithmetic:64", *words[1:]]))
    refuse_idle_reward_workers(plan, 0)
    with pytest.raises(ValueError, match=message):
        refuse_idle_reward_workers(plan, 2)
    beside = ["rewards=[{use: verifier}, {use: mathematics}]"]
    refuse_idle_reward_workers(
        resolve(load_config("grpo", ["model=tiny:llama", "data=arithmetic:64", *beside])), 2
    )


def test_a_launch_of_another_run_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    other, own = RewardLaunch("other", 3, "secret"), RewardLaunch("own", 1, "key")
    assert RewardLaunch.of_environment() is None
    for name, value in other.environment().items():
        monkeypatch.setenv(name, value)
    assert RewardLaunch.of_environment() == other
    assert (
        not other.environment().keys() & rank_environment(0, 1, "a", 1, threads=1, given={}).keys()
    )
    assert (
        own.environment().items()
        <= rank_environment(0, 1, "a", 1, threads=1, given=own.environment()).items()
    )


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_fix_is_said() -> None:
    with pytest.raises(ValueError, match=r"pip install 'ascent-posttrain\[ray\]', on every node"):
        require_ray()
