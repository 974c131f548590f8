"""Exact arithmetic on a GPU (H100 or H200): do sampling and training agree to the last bit, and do runs repeat?

    python bench/exact.py parity [--tokens 1000000] [--minutes 7] [--families qwen2,llama] --out FILE
    python bench/exact.py runs [--steps 20] --out FILE

`parity` samples with every family, group size, block size, batch size, with and without preemption, computes the
trainer's log-probs with micro-batches cut in three ways, and counts tokens and max |recorded - trained|. It stops after
`--minutes` and continues from FILE when called again. Families may be measured side by side, each with its own FILE.
`runs` trains twice, and a third time with kill -9 in the middle and a resume, and compares the sha256 of the weights,
which must not be those of an earlier checkpoint either.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FAMILIES = ("qwen2", "qwen3", "llama", "mistral")
SHAPE = {
    "hidden": 512,
    "layers": 8,
    "heads": 8,
    "key_value_heads": 2,
    "intermediate": 5120,
    "initializer_range": 0.06,
}
GROUPS, BLOCK_SIZES, BATCHES, CUTS = (1, 8), (16, 64, 128), (1, 33, 512), (1, 7, 10**6)
MODES = ("free", "preempted")


def cells(families: Sequence[str] = FAMILIES) -> list[dict[str, Any]]:
    """What is measured; one sequence at a time only for small groups, because it takes long."""
    names = ("family", "group", "block_size", "batch", "mode")
    found = [
        dict(zip(names, each, strict=True))
        for each in itertools.product(families, GROUPS, BLOCK_SIZES, BATCHES, MODES)
    ]
    return [each for each in found if each["mode"] == "free" or each["batch"] == 33]


def measure(cell: dict[str, Any], seed: int) -> dict[str, Any]:
    import torch

    from ascent.engines.native.engine import NativeEngine
    from ascent.models.load import load
    from ascent.models.tiny import create
    from ascent.records import Request

    folder = Path(tempfile.gettempdir()) / f"exact-{cell['family']}"
    if not folder.exists():
        create(folder, family=cell["family"], seed=0, vocab_size=32768, longest=2048, **SHAPE)
    model = load(folder, dtype="bfloat16", device="cuda", arithmetic="exact")
    draw = np.random.default_rng(seed)
    count = {1: 4, 33: 64, 512: 512}[cell["batch"]]
    requests = []
    for prompt in range(-(-count // cell["group"])):
        text = tuple(draw.integers(3, 250, size=int(draw.integers(1, 300))).tolist())
        requests += [
            Request(f"p{prompt}", n, text, int(draw.integers(2, 256)), seed)
            for n in range(cell["group"])
        ]
    blocks = {} if cell["mode"] == "free" else {"num_blocks": 6000 // cell["block_size"]}
    engine = NativeEngine(
        model,
        {1},
        max_num_seqs=cell["batch"],
        block_size=cell["block_size"],
        max_model_len=600,
        **blocks,
    )
    done = {(each.prompt_id, each.sample): each for each in engine.sample(requests)}
    pairs = [(each, done[each.prompt_id, each.sample]) for each in requests]
    recorded = torch.cat([torch.tensor(each.logprobs) for _, each in pairs])
    gaps = {str(cut): float((trained(model, pairs, cut) - recorded).abs().max()) for cut in CUTS}
    return {
        **cell,
        "seed": seed,
        "tokens": recorded.numel(),
        "preemptions": engine.stats().preemptions,
        "max": gaps,
    }


def trained(model: Any, pairs: list[Any], cut: int) -> Any:
    """The trainer's log-probs with gradients, `cut` sequences in a micro-batch, or as many as have 16,384 tokens."""
    import torch

    from ascent.maths.segments import Segments

    parts: list[list[Any]] = []
    for pair in pairs:
        size = len(pair[0].tokens) + len(pair[1].tokens)
        used = sum(len(a.tokens) + len(b.tokens) for a, b in parts[-1]) if parts else 0
        if not parts or len(parts[-1]) >= cut or used + size > 16384:
            parts.append([])
        parts[-1].append(pair)
    found = []
    for part in parts:
        texts = [request.tokens + done.tokens for request, done in part]
        lengths = [len(text) for text in texts]
        batch = {
            "tokens_T": torch.tensor([token for text in texts for token in text], device="cuda"),
            "positions_T": torch.cat([torch.arange(length) for length in lengths]).cuda(),
            "segments": Segments.from_lengths(torch.tensor(lengths, device="cuda")),
        }
        logprobs_T = model.outputs(batch, frozenset({"logprobs_T"}))["logprobs_T"].detach().cpu()
        found += [
            each[len(r.tokens) :]
            for each, (r, _) in zip(logprobs_T.split(lengths), part, strict=True)
        ]
    return torch.cat(found)


def parity(given: argparse.Namespace) -> None:
    started = time.perf_counter()
    rows: list[dict[str, Any]] = (
        json.loads(given.out.read_text())["rows"] if given.out.exists() else []
    )
    queue = itertools.chain.from_iterable(
        ((seed, cell) for cell in cells(given.families)) for seed in itertools.count()
    )
    for seed, cell in itertools.islice(queue, len(rows), None):
        total = sum(row["tokens"] for row in rows)
        if (total >= given.tokens and seed) or time.perf_counter() - started > 60 * given.minutes:
            break
        rows.append(measure(cell, seed))
        print(json.dumps(rows[-1]), flush=True)
        given.out.write_text(
            json.dumps({"study": "exact parity", **_machine(), "rows": rows}, indent=1) + "\n"
        )
    worst = max((gap for row in rows for gap in row["max"].values()), default=float("nan"))
    cell_count, tokens = len(cells(given.families)), sum(row["tokens"] for row in rows)
    print(f"{len(rows)} cells of {cell_count}, {tokens} tokens, max |difference| {worst}")


def runs(given: argparse.Namespace) -> None:
    folder = Path(tempfile.mkdtemp())
    (folder / "reward.py").write_text(
        "def letters(rollout):\n    return len(set(rollout.text)) / 10\n"
    )
    keys = [
        "model=tiny:llama",
        "data=sort_digits:256",
        "model.dtype=bfloat16",
        "model.arithmetic=exact",
    ]
    keys += [f"rewards=[{{use: '{folder / 'reward.py'}:letters'}}]", "update.learning_rate=1e-3"]
    keys += [
        f"run.steps={given.steps}",
        "run.save_every=2",
        "rollouts.group_size=8",
        "rollouts.prompts_per_step=8",
    ]
    keys += ["rollouts.max_new_tokens=64"]
    found = {}
    for name in ("first", "second", "killed"):
        run = folder / name
        process = _ascent("train", "grpo", *keys, "--run", str(run))
        if name == "killed":
            while process.poll() is None and len(list(run.glob("checkpoints/*"))) < 3:
                time.sleep(0.05)
            process.send_signal(signal.SIGKILL)
            process.wait()
            process = _ascent("resume", str(run))
        if process.wait():
            raise SystemExit(f"the run {name} failed; see its output above")
        found[name] = digest(run)
        print(name, found[name], flush=True)
    equal, moved = len(set(found.values())) == 1, digest(folder / "first", min) != found["first"]
    result = {
        "study": "exact runs",
        **_machine(),
        "steps": given.steps,
        "sha256": found,
        "equal": equal,
    }
    given.out.write_text(json.dumps({**result, "trained": moved}, indent=1) + "\n")
    print(
        "equal" if equal else "NOT EQUAL",
        "" if moved else "BUT NOT TRAINED: an earlier checkpoint has these weights",
    )


def digest(run: Path, pick: Callable[..., Path] = max) -> str:
    """The sha256 of the weights of the newest checkpoint, or of the oldest that is kept."""
    chosen = pick(run.glob("checkpoints/*/model"), key=lambda path: int(path.parent.name))
    found = hashlib.sha256()
    for file in sorted(chosen.glob("*.safetensors")):
        found.update(file.read_bytes())
    return found.hexdigest()


def _ascent(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "ascent", *words], stdout=subprocess.DEVNULL)


def _machine() -> dict[str, Any]:
    import torch

    return {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("parity", "runs"))
    parser.add_argument("--tokens", type=int, default=10**6)
    parser.add_argument("--minutes", type=float, default=7)
    parser.add_argument("--families", type=lambda text: text.split(","), default=FAMILIES)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    import torch

    from ascent.models.exact import device_problem

    problem = device_problem(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    if problem:
        print(f"bench/exact.py needs an H100 or H200: {problem}")
        return
    {"parity": parity, "runs": runs}[given.what](given)


if __name__ == "__main__":
    main()
