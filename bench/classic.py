"""Studies of the classic methods; each writes a dated JSON with hardware, command and seeds to bench/results/.

    python bench/classic.py variance     bias and variance of the policy-gradient estimators on CartPole
    python bench/classic.py cartpole     VPG, TRPO and PPO to a mean return of 475, five seeds
    python bench/classic.py objectives   PPO clipped / unclipped / adaptive KL, five seeds
    python bench/classic.py peers --peer-python PATH
                                         TRPO and PPO against stable-baselines3 on Acrobot and Pendulum, five seeds;
                                         PATH is the Python of an environment with stable-baselines3 and sb3-contrib
    python bench/classic.py              the first three

Every run is single-threaded, and one runs at a time. In `peers`, ours and theirs take turns seed by seed, so that
whatever else the machine is doing falls on both; CPU seconds are reported beside wall-clock for the same reason.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import datetime
import json
import math
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from ascent.classic import policy_gradient, ppo, trpo, variance
from ascent.classic.result import Result, evaluate

torch.set_num_threads(1)
HERE = Path(__file__).resolve().parent
SEEDS = (0, 1, 2, 3, 4)
FRESH = 1_000_000
"""First seed of the evaluation episodes; no training run gets near it."""
MARK = 475.0

CARTPOLE = {
    "vpg": (
        policy_gradient,
        policy_gradient.Settings(weight="vpg", steps=100_000, lr=1e-2, whiten=True),
    ),
    "trpo": (trpo, trpo.Settings(steps=61_440, envs=8, length=256, damping=0.01, critic_lr=3e-3)),
    "ppo": (
        ppo,
        ppo.Settings(steps=80_000, length=32, epochs=20, lam=0.8, gamma=0.98, lr=1e-3, anneal=True),
    ),
}
OBJECTIVES = {
    name: ppo.Settings(
        steps=40_960, envs=8, length=128, epochs=10, minibatch=128, lr=1e-3, objective=name
    )
    for name in ("clip", "unclipped", "penalty")
}
PEERS = {
    ("ppo", "Acrobot-v1"): (
        ppo,
        ppo.Settings(
            steps=61_440, envs=16, length=256, lam=0.94, epochs=4, minibatch=64, scale=True
        ),
    ),
    ("trpo", "Acrobot-v1"): (trpo, trpo.Settings(steps=40_960, envs=2, length=1024, scale=True)),
    ("ppo", "Pendulum-v1"): (
        ppo,
        ppo.Settings(steps=61_440, envs=4, length=1024, gamma=0.95, lr=1e-3, minibatch=64, hold=4),
    ),
    ("trpo", "Pendulum-v1"): (
        trpo,
        trpo.Settings(
            steps=61_440, envs=2, length=512, delta=0.02, gamma=0.95, critic_epochs=15, hold=4
        ),
    ),
}


def run_variance(save: Any, earlier: dict[str, Any]) -> None:
    settings = variance.Settings(
        batches=600, episodes=16, critic_episodes=320, lams=(0, 0.5, 0.9, 0.95, 0.97, 0.99, 1)
    )
    started = time.perf_counter()
    gradients = variance.sample_gradients("CartPole-v1", settings, seed=0)
    steps = {
        "basic/reward_to_go": ("basic", "reward_to_go"),
        "reward_to_go/baseline": ("reward_to_go", "baseline"),
    }
    steps["baseline/vpg"] = ("baseline", "vpg")
    reference_MK = gradients[variance.REFERENCE]
    save(
        {
            "env": "CartPole-v1",
            "settings": vars(settings),
            "parameters": reference_MK.shape[1],
            "bound_on_largest_z": variance.bound_on_largest_z(reference_MK.shape[1]),
            "estimators": {
                name: vars(variance.describe(x, reference_MK)) for name, x in gradients.items()
            },
            "variance_ratio_95": {
                name: variance.ratio_interval(gradients[a], gradients[b])
                for name, (a, b) in steps.items()
            },
            "seconds": time.perf_counter() - started,
        }
    )


def one_cartpole(method: Any, settings: Any, seed: int) -> dict[str, Any]:
    return measured(
        method.train("CartPole-v1", settings, seed=seed), "CartPole-v1", seed, sampled=True
    )


def reached(name: str) -> tuple[int, list[float]]:
    """On how many seeds a method reaches the mark on CartPole, and the final returns."""
    method, settings = CARTPOLE[name]
    finals = [one_cartpole(method, settings, seed)["final"] for seed in SEEDS]
    return sum(final >= MARK for final in finals), finals


def unchanged(method: Any, earlier: dict[str, Any] | None, settings: Any) -> bool:
    """Whether a result file's settings are these; a setting younger than the file had its default."""
    return earlier is not None and json.dumps(vars(method.Settings(**earlier))) == json.dumps(
        vars(settings)
    )


def run_cartpole(save: Any, earlier: dict[str, Any]) -> None:
    """A method that the file of today already holds, with these settings, is kept."""
    table: dict[str, Any] = dict(earlier.get("methods", {}))
    for name, (method, settings) in CARTPOLE.items():
        if unchanged(method, table.get(name, {}).get("settings"), settings):
            continue
        rows = [one_cartpole(method, settings, seed) for seed in SEEDS]
        count = sum(row["final"] >= MARK for row in rows)
        table[name] = {"settings": vars(settings), "reached": count, "of": len(SEEDS), "runs": rows}
        print(name, f"{count}/{len(SEEDS)}", [round(row["final"], 1) for row in rows], flush=True)
        save({"env": "CartPole-v1", "mark": MARK, "methods": table})


def run_objectives(save: Any, earlier: dict[str, Any]) -> None:
    table: dict[str, Any] = {}
    for env_id in ("CartPole-v1",):
        for name, settings in OBJECTIVES.items():
            rows = [
                measured(ppo.train(env_id, settings, seed=seed), env_id, seed) for seed in SEEDS
            ]
            means = {
                key: interval([row[key] for row in rows])
                for key in ("over_training", "last_100", "final")
            }
            table[f"{env_id} {name}"] = means | {"settings": vars(settings), "runs": rows}
            print(env_id, name, means, flush=True)
            save({"objectives": table})


def run_peers(save: Any, earlier: dict[str, Any], peer_python: str) -> None:
    """Pairs that today's file holds with these settings are kept, so that a stopped study goes on where it was."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for (name, env_id), (method, settings) in PEERS.items():
        task = f"{name} {env_id}"
        same = unchanged(method, earlier.get("settings", {}).get(task), settings)
        rows[task] = earlier["tasks"][task]["runs"] if same else []
    for seed in SEEDS:
        for (name, env_id), (method, settings) in PEERS.items():
            if any(row["seed"] == seed for row in rows[f"{name} {env_id}"]):
                continue
            pair = one_pair(peer_python, name, env_id, method, settings, seed)
            rows[f"{name} {env_id}"].append(pair)
            shown = {
                key: (round(pair["ours"][key], 1), round(pair["theirs"][key], 1)) for key in SHOWN
            }
            print(name, env_id, seed, shown, flush=True)
            settings_used = {
                f"{name} {env_id}": vars(settings)
                for (name, env_id), (_, settings) in PEERS.items()
            }
            save(
                {
                    "settings": settings_used,
                    "tasks": {key: compared(some) for key, some in rows.items()},
                }
            )
    print(peers_table({"tasks": {key: compared(some) for key, some in rows.items()}}), flush=True)


SHOWN = ("final", "over_training", "seconds", "cpu_seconds")


def peers_table(found: dict[str, Any]) -> str:
    """The comparison as a Markdown table, for docs/foundations."""
    lines = [
        "| task | steps | seeds | ours, final | theirs, final | difference | wall-clock | CPU time |"
    ]
    lines.append("|" + "---|" * 8)
    for task, some in found["tasks"].items():
        if not some["runs"]:
            continue
        ours, theirs = (
            np.mean([row[side]["final"] for row in some["runs"]]) for side in ("ours", "theirs")
        )
        gap, faster = some["ours_minus_theirs_95"]["final"], some["times_faster"]
        cells = [
            task,
            f"{some['runs'][0]['ours']['steps']:,}",
            str(len(some["runs"])),
            f"{ours:.1f}",
            f"{theirs:.1f}",
        ]
        cells += [f"{gap['mean']:+.1f} ± {gap['half_width_95']:.1f}"]
        cells += [f"{faster['seconds']:.2f}x", f"{faster['cpu_seconds']:.2f}x"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def against_peer(python: str, name: str, env_id: str) -> dict[str, Any]:
    """Five seeds of one pair, compared; the bar of the learning tests."""
    method, settings = PEERS[name, env_id]
    return compared([one_pair(python, name, env_id, method, settings, seed) for seed in SEEDS])


def one_pair(
    python: str, name: str, env_id: str, method: Any, settings: Any, seed: int
) -> dict[str, Any]:
    cpu = time.process_time()
    result = method.train(env_id, settings, seed=seed)
    ours = {"cpu_seconds": time.process_time() - cpu} | measured(result, env_id, seed)
    return {"seed": seed, "ours": ours, "theirs": peer(python, name, env_id, settings.steps, seed)}


def peer(python: str, name: str, env_id: str, steps: int, seed: int) -> dict[str, Any]:
    command = [
        python,
        str(HERE / "peers" / "classic.py"),
        name,
        env_id,
        "--steps",
        str(steps),
        "--seed",
        str(seed),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def measured(result: Result, env_id: str, seed: int, *, sampled: bool = False) -> dict[str, Any]:
    """A finished run in numbers. `final`: 100 fresh episodes, greedy actions; `final_sampled`: sampled ones."""
    fresh = {"final": True} | ({"final_sampled": False} if sampled else {})
    finals = {
        key: float(np.mean(evaluate(result.policy, env_id, 100, FRESH, greedy=greedy)))
        for key, greedy in fresh.items()
    }
    return finals | {
        "seed": seed,
        "over_training": float(np.mean(result.returns)),
        "last_100": float(np.mean(result.returns[-100:])),
        "steps": int(result.history[-1]["steps"]),
        "seconds": result.seconds,
    }


def compared(rows: list[dict[str, Any]]) -> dict[str, Any]:
    if not rows:
        return {"runs": []}
    ours, theirs = ([row[side] for row in rows] for side in ("ours", "theirs"))
    gap = {
        key: welch([x[key] for x in ours], [x[key] for x in theirs])
        for key in ("final", "over_training")
    }
    ratio = {
        key: sum(x[key] for x in theirs) / sum(x[key] for x in ours)
        for key in ("seconds", "cpu_seconds")
    }
    return {"ours_minus_theirs_95": gap, "times_faster": ratio, "runs": rows}


# Two-sided 95% points of Student's t for 1, 2, ... degrees of freedom.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def interval(values: list[float]) -> dict[str, float]:
    half = T_95[len(values) - 2] * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return {"mean": float(np.mean(values)), "half_width_95": half}


def welch(a: list[float], b: list[float]) -> dict[str, float]:
    """Mean difference a - b and the half-width of its 95% interval, for unequal variances."""
    if len(a) < 2:
        return {"mean": float(np.mean(a) - np.mean(b)), "half_width_95": math.inf}
    parts = [float(np.var(x, ddof=1)) / len(x) for x in (a, b)]
    freedom = sum(parts) ** 2 / max(
        sum(part**2 / (len(x) - 1) for part, x in zip(parts, (a, b), strict=True)), 1e-300
    )
    half = T_95[min(max(int(freedom), 1), len(T_95)) - 1] * math.sqrt(sum(parts))
    return {"mean": float(np.mean(a) - np.mean(b)), "half_width_95": half}


def main() -> None:
    from hardware import hardware  # beside this script; tests import the rest as bench.classic

    studies = {"variance": run_variance, "cartpole": run_cartpole, "objectives": run_objectives}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", nargs="?", choices=[*studies, "peers"])
    parser.add_argument(
        "--peer-python", help="Python of an environment with stable-baselines3 and sb3-contrib"
    )
    given = parser.parse_args()
    if given.study == "peers" and not given.peer_python:
        parser.error(
            "peers needs --peer-python, the Python of an environment with stable-baselines3 and sb3-contrib"
        )
    for name in [given.study] if given.study else studies:
        today = datetime.date.today().isoformat()
        path = HERE / "results" / f"{today}-classic-{name}.json"
        about = {
            "study": name,
            "date": today,
            "hardware": hardware(),
            "threads": 1,
            "seeds": list(SEEDS),
        }
        about["command"] = f"python bench/classic.py {name}" + (
            " --peer-python PATH" if name == "peers" else ""
        )
        about["versions"] = {
            "torch": torch.__version__,
            "gymnasium": gymnasium.__version__,
            "numpy": np.__version__,
        }

        def save(found: dict[str, Any], path: Path = path, about: dict[str, Any] = about) -> None:
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(about | found, indent=1, default=list) + "\n")

        earlier = json.loads(path.read_text()) if path.exists() else {}
        if name == "peers":
            run_peers(save, earlier, given.peer_python)
        else:
            studies[name](save, earlier)
        print("wrote", path.relative_to(HERE.parent), flush=True)


if __name__ == "__main__":
    main()
