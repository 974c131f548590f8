"""Is `ascent forecast` right? Memory and time of a run, forecast and measured, each in a process of its own.

    python bench/forecast.py [--turn first|second] [--only NAME,NAME] [--steps N] [--repeats N] [--seconds N]
        [--shape tiny] [--sheet H200]

Ten recipes on a CPU, six on a GPU where there is one (`--gpu-recipes` takes these six on a CPU, with `--shape tiny`).
The forecast is made first. Then the run is trained and compared: its peak memory (resident, as the system counts it; on
a GPU what the card had in use, which must be otherwise idle), the mean of its step times after the warm-up, and the
time of all its steps, evaluations and checkpoints. Times are the median of `--repeats` such pairs. Weights are random,
nothing is downloaded. The second turn has other models, batch sizes, lengths and seeds. Rows are added to dated JSON in
bench/results/; a recipe that would begin after `--seconds` is left out. With `--sheet` the forecast from that card's
data sheet (`ascent forecast --gpu`) is compared, too.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ |= {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
os.environ.setdefault("OMP_NUM_THREADS", "1")

TURNS = ("first", "second")
SHAPES: dict[str, dict[str, int]] = {
    "tiny": {
        "hidden": 64,
        "layers": 2,
        "heads": 4,
        "key_value_heads": 2,
        "intermediate": 256,
        "vocab_size": 2048,
    },
    "9m": {
        "hidden": 320,
        "layers": 6,
        "heads": 5,
        "key_value_heads": 5,
        "intermediate": 960,
        "vocab_size": 4096,
    },
    "6m": {
        "hidden": 256,
        "layers": 7,
        "heads": 4,
        "key_value_heads": 2,
        "intermediate": 768,
        "vocab_size": 4096,
    },
    "0.1b": {
        "hidden": 768,
        "layers": 12,
        "heads": 12,
        "key_value_heads": 4,
        "intermediate": 2048,
        "vocab_size": 32000,
    },
    "0.5b": {
        "hidden": 896,
        "layers": 24,
        "heads": 14,
        "key_value_heads": 2,
        "intermediate": 4864,
        "vocab_size": 151936,
    },
    "1.5b": {
        "hidden": 1536,
        "layers": 28,
        "heads": 12,
        "key_value_heads": 2,
        "intermediate": 8960,
        "vocab_size": 151936,
    },
}
PRELOADED = ["ascent.api.forecast", "ascent.api.train", "ascent.setup.rl", "bench.forecast"]


@dataclass(frozen=True)
class Case:
    shape: str
    algorithm: str
    keys: dict[str, Any]


def sampled(prompts: int, group: int, new_tokens: int, **keys: Any) -> dict[str, Any]:
    """Rollouts; a reward without a meaning, so that no group has equal rewards."""
    return {
        "data.train": "PROMPTS",
        "rewards": '[{"use": "REWARD:spread"}]',
        "rollouts.prompts_per_step": prompts,
        "rollouts.group_size": group,
        "rollouts.max_new_tokens": new_tokens,
        "update.learning_rate": 1e-5,
        **keys,
    }


def files(name: str, batch: int, **keys: Any) -> dict[str, Any]:
    return {
        "data.train": f"{name}:512",
        "data.batch_size": batch,
        "update.learning_rate": 1e-5,
        **keys,
    }


def cpu_cases(turn: str) -> dict[str, Case]:
    later = turn == "second"
    shape = "6m" if later else "9m"
    evaluated = {
        "data.evaluate": "style@heldout:48" if later else "style@heldout:32",
        "run.evaluate_every": 5,
    }
    recomputed = {"model.gradient_checkpointing": True}
    lora = {"model.lora": 4 if later else 16, "update.learning_rate": 1e-4}
    heldout = {"data.evaluate": "HELDOUT", "run.evaluate_every": 5}
    return {
        "sft": Case(shape, "sft", files("arithmetic", 24 if later else 16)),
        "sft-recomputed": Case(
            shape, "sft", files("running_sum", 40 if later else 32, **recomputed)
        ),
        "sft-lora": Case(shape, "sft", files("sort_digits", 32 if later else 16, **lora)),
        "dpo-evaluated": Case(shape, "dpo", files("style", 12 if later else 8, **evaluated)),
        "kto": Case(shape, "kto", files("style", 24 if later else 16)),
        "reward-model": Case(shape, "reward_model", files("contrary", 16 if later else 8)),
        "grpo": Case(
            shape, "grpo", sampled(3 if later else 2, 6 if later else 4, 40 if later else 24)
        ),
        "rlvr-evaluated": Case(
            "tiny",
            "rlvr",
            sampled(6 if later else 8, 6 if later else 4, 48 if later else 32, **heldout),
        ),
        "ppo": Case(shape, "ppo", sampled(12 if later else 8, 1, 20 if later else 32)),
        "rloo-saved": Case(
            "tiny",
            "rloo",
            sampled(12 if later else 8, 4, 32 if later else 64, **{"run.save_every": 3}),
        ),
    }


def gpu_cases(turn: str) -> dict[str, Case]:
    later = turn == "second"
    lora = {"model.lora": 16 if later else 32, "update.learning_rate": 1e-4}
    checkpointed = {"model.gradient_checkpointing": True}
    offloaded = {"update.optimizer_offload": True}
    return {
        "sft": Case("0.1b", "sft", files("PACKED", 96 if later else 64)),
        "dpo-lora": Case(
            "1.5b", "dpo", files("PAIRS", 24 if later else 32, **lora, **checkpointed)
        ),
        "reward-model": Case(
            "0.1b", "reward_model", files("PAIRS", 96 if later else 64, **offloaded)
        ),
        "grpo": Case("0.5b", "grpo", sampled(24 if later else 32, 8, 192 if later else 256)),
        "grpo-lora": Case(
            "0.5b", "grpo", sampled(32 if later else 16, 8, 128 if later else 256, **lora)
        ),
        "ppo": Case("0.1b", "ppo", sampled(192 if later else 256, 1, 256 if later else 192)),
    }


def make_model(folder: Path, shape: str, *, seed: int) -> Path:
    """Written once."""
    import torch

    from ascent.models import tiny

    home = folder / f"{shape}-{seed}"
    if not home.exists():
        cuda, tokenizer = torch.cuda.is_available(), tiny.tiny_tokenizer()
        with torch.device(
            "cuda" if cuda else "cpu"
        ):  # a billion random numbers take a while on a CPU
            more: dict[str, Any] = {**SHAPES[shape], "tie_word_embeddings": True, "longest": 2048}
            module = tiny.tiny_model("qwen2", len(tokenizer), seed=seed, **more)
        module.to(torch.bfloat16 if cuda else torch.float32).save_pretrained(home)
        tokenizer.save_pretrained(home)
        del module
        if cuda:
            torch.cuda.empty_cache()
    return home


def make_files(folder: Path, *, seed: int, words: int) -> dict[str, str]:
    """Prompts, records and pairs of digits, each of them two tokens, and a reward."""
    rng = random.Random(seed)

    def text(most: int) -> str:
        return " ".join(str(rng.randrange(10)) for _ in range(rng.randint(most // 2, most)))

    rows = {
        "PROMPTS": [{"prompt": text(words)} for _ in range(512)],
        "HELDOUT": [{"prompt": text(words)} for _ in range(24)],
        "PACKED": [{"prompt": text(words), "completion": text(4 * words)} for _ in range(1024)],
        "PAIRS": [
            {"prompt": text(words), "chosen": text(2 * words), "rejected": text(2 * words)}
            for _ in range(1024)
        ],
    }
    for name, found in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    (folder / "reward.py").write_text(
        "import random\n\n\ndef spread(rollout):\n    return random.random()\n"
    )
    places = {name: str(folder / f"{name}.jsonl") for name in rows}
    return {
        **places,
        "PACKED:512": places["PACKED"],
        "PAIRS:512": places["PAIRS"],
        "REWARD": str(folder / "reward.py"),
    }


@dataclass(frozen=True)
class Used:
    """What a process returned, the most memory that it used, and the share of a core that its steps had, which is below
    1 where something else runs."""

    result: Any
    memory: int
    core: float


def call(name: str, algorithm: str, overrides: list[str], **more: Any) -> Used:
    """`ascent.forecast` or `ascent.train` in a process of its own, forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    here, there = context.Pipe()
    child = context.Process(target=run_child, args=(there, name, algorithm, overrides, more))
    child.start()
    there.close()
    try:
        return here.recv()
    except EOFError:
        raise RuntimeError(f"{name} {algorithm} {' '.join(overrides)} failed") from None
    finally:
        child.join()


def run_child(
    pipe: Any, name: str, algorithm: str, overrides: list[str], more: dict[str, Any]
) -> None:
    import torch

    import ascent
    from ascent import loop
    from ascent.api.peak_memory import watch_memory

    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    run, spent = loop.run, [0.0, 0.0]

    def timed(*given: Any, **options: Any) -> int:
        begun = time.process_time(), time.perf_counter()
        done = run(*given, **options)
        spent[0] += time.process_time() - begun[0]
        spent[1] += time.perf_counter() - begun[1]
        return done

    loop.run = timed
    options = {"say": lambda line: None, **more, **({"progress": False} if name == "train" else {})}
    with watch_memory() as watch:
        result = getattr(ascent, name)(algorithm, overrides, **options)
    result = asdict(result) if name == "forecast" else None
    pipe.send(Used(result, watch.bytes, min(1.0, spent[0] / max(spent[1], 1e-9))))


def compare(name: str, case: Case, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Forecasts and what happened; the memory of the first pair, the median time of all."""
    begun, seed = time.perf_counter(), TURNS.index(given.turn)
    model = make_model(folder, given.shape or case.shape, seed=seed)
    places = make_files(folder, seed=seed, words=given.words)
    keys = {"model.policy": str(model), "seed": seed, **case.keys, "run.steps": given.steps}
    values = {key: places.get(str(value), str(value)) for key, value in keys.items()}
    values = {key: value.replace("REWARD", places["REWARD"]) for key, value in values.items()}
    words = [f"{key}={value}" for key, value in values.items()]
    pairs = [
        measure_pair(case.algorithm, words, given, folder / f"run-{name}")
        for _ in range(given.repeats)
    ]
    ratio = {
        key: statistics.median(each["ratio"][key] for each in pairs) for key in pairs[0]["ratio"]
    }
    ratio["memory"] = pairs[0]["ratio"]["memory"]
    if given.sheet:
        sheet = call("forecast", case.algorithm, words, gpu=given.sheet).result
        ratio["sheet_memory"] = sheet["memory"] / pairs[0]["measured"]["memory"]
        ratio["sheet_step"] = sheet["step_seconds"] / pairs[0]["measured"]["step"]
    return {
        "recipe": name,
        "turn": given.turn,
        "model": given.shape or case.shape,
        "keys": case.keys,
        "ratio": ratio,
        "pairs": pairs,
        "seconds": time.perf_counter() - begun,
    }


def measure_pair(
    algorithm: str, words: list[str], given: argparse.Namespace, run: Path
) -> dict[str, Any]:
    """One forecast and one run."""
    said = call("forecast", algorithm, words)
    done = call("train", algorithm, words, run=str(run))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [each for each in lines if "time/step" in each]
    after = [each["time/step"] for each in trained[given.warm_up :]]
    ended = json.loads((run / "outcome.json").read_text())["timestamp"]
    shutil.rmtree(run)  # checkpoints are large
    whole = ended - trained[given.warm_up - 1]["timestamp"]
    measured = {"memory": done.memory, "step": sum(after) / len(after), "whole": whole}
    before = given.warm_up * said.result["step_seconds"]  # and the evaluation before the first step
    before += said.result["evaluation_seconds"] * any("HELDOUT" in word for word in words)
    total = said.result["total_seconds"] - before
    forecast = {
        "memory": said.result["memory"],
        "step": said.result["step_seconds"],
        "whole": total,
    }
    ratio = {key: forecast[key] / measured[key] for key in forecast}
    ratio["step_alone"] = (
        ratio["step"] * said.core / done.core
    )  # as if nothing else had run beside either
    core = {"forecast": said.core, "measured": done.core}
    return {
        "forecast": forecast,
        "measured": measured,
        "ratio": ratio,
        "core": core,
        "phases": said.result["phases"],
    }


def arguments() -> argparse.Namespace:
    import torch

    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turn", choices=TURNS, default=TURNS[0], help="which settings and seeds")
    parser.add_argument("--only", type=lambda text: text.split(","), help="these recipes")
    parser.add_argument("--steps", type=int, default=8 if on_gpu else 12)
    parser.add_argument("--repeats", type=int, default=1 if on_gpu else 3)
    parser.add_argument("--sheet", help="also compare the forecast from this card's data sheet")
    parser.add_argument("--shape", choices=SHAPES, help="one model for all recipes")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no recipe after so many"
    )
    parser.add_argument(
        "--gpu-recipes", action="store_true", default=on_gpu, help="the six, to try them on a CPU"
    )
    parser.add_argument(
        "--out", type=Path, help="the JSON file to add to; by default dated, in bench/results/"
    )
    given = parser.parse_args()
    given.warm_up, given.words = (2, 64) if on_gpu else (1, 8)
    return given


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    from bench.hardware import hardware

    known = json.loads(path.read_text())["rows"] if path.is_file() else []
    new = {(each["recipe"], each["turn"]) for each in rows}
    kept = [each for each in known if (each["recipe"], each["turn"]) not in new]
    content = {
        "command": "python bench/forecast.py",
        "hardware": hardware(),
        "rows": [*kept, *rows],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    import torch

    given, begun = arguments(), time.monotonic()
    cases = (gpu_cases if given.gpu_recipes else cpu_cases)(given.turn)
    names, rows = given.only or list(cases), []
    device = "cuda" if torch.cuda.is_available() else "cpu"
    path = (
        given.out
        or ROOT / f"bench/results/{datetime.date.today().isoformat()}-forecast-{device}.json"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            if time.monotonic() - begun > given.seconds:
                print(f"{name:15} left out: the time is over")
                continue
            rows.append(compare(name, cases[name], given, Path(folder)))
            write(path, rows)
            print(line(rows[-1]), flush=True)
    print(f"\nforecast / measured, in {time.monotonic() - begun:.0f} s")
    for row in rows:
        print(line(row))


def line(row: dict[str, Any]) -> str:
    ratio, found = row["ratio"], row["pairs"][0]["measured"]
    return (
        f"{row['recipe']:15} {row['model']:5} memory {ratio['memory']:.3f} ({found['memory'] / 2**20:,.0f} MiB), "
        f"step {ratio['step']:.3f} ({found['step']:.3f} s; alone {ratio['step_alone']:.3f}), "
        f"whole {ratio['whole']:.3f} ({found['whole']:.1f} s)"
        + (
            f", sheet {ratio['sheet_memory']:.2f} {ratio['sheet_step']:.2f}"
            if "sheet_step" in ratio
            else ""
        )
    )


if __name__ == "__main__":
    main()
