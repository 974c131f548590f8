"""Trains cases with the package that comes first on the path, and says what they leave, as values or as digests.

`same_bits.py` runs this file in a process of its own for each tree. It uses the package's public functions only, so
that it works with every tree that has them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import multiprocessing
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Result = dict[str, Any]
THREADS = 1
MEASURED = re.compile(r"\d[\d.,]*(?= ?(s|ms|seconds?|minutes?|times|GiB|MiB|KiB)\b)")


def main(given_file: str, out: str) -> None:
    import torch

    import ascent
    import ascent.api.train  # forked children have it all

    torch.set_num_threads(THREADS)
    print(f"measuring {Path(ascent.__file__).parent}", flush=True)
    given = json.loads(Path(given_file).read_text())
    with tempfile.TemporaryDirectory(prefix="same-bits-") as folder:
        root = Path(folder)
        stub_pictures()
        create_policies(root)
        (root / "rewards.py").write_text(given["rewards"])
        work = [
            (name, case, root, Path(given["old"]), given["write_old"])
            for name, case in given["cases"].items()
        ]
        with open(out, "w") as lines:
            for name, result in run_all(work, given["jobs"]):
                lines.write(json.dumps([name, result]) + "\n")
                lines.flush()


def run_all(work: list[Any], jobs: int) -> Iterator[tuple[str, Result]]:
    """Each case in a process of its own, so that none depends on the ones before it."""
    if jobs == 1:  # a process that has used CUDA cannot be forked
        yield from map(run_case, work)
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(run_case, work)


def stub_pictures() -> None:
    """curves.png takes longer than the training and is not compared."""
    import ascent.runs.folder as folder

    if hasattr(folder, "draw"):
        folder.draw = lambda *_, **__: []


def create_policies(root: Path) -> None:
    """Tiny policies that end about every sixth token: completions of equal length would hide a mean of means."""
    import torch
    from safetensors.torch import load_file, save_file

    import ascent

    for family in ("llama", "qwen3_moe"):
        recipe = {"algorithm": "sft", "model.policy": f"tiny:{family}", "model.dtype": "float32"}
        recipe |= {"data.train": "arithmetic:8", "data.batch_size": 8}
        recipe |= {"update.learning_rate": 1e-9, "run.steps": 1}
        run = root / "start"
        ascent.train(recipe, run=run, progress=False, say=lambda line: None)
        policy = Path(ascent.export(run, root / family, say=lambda line: None))
        shutil.rmtree(run)
        weights = load_file(policy / "model.safetensors")
        end = json.loads((policy / "config.json").read_text())["eos_token_id"]
        with torch.no_grad():  # one dimension is high everywhere, and the end of a text reads it
            weights["model.embed_tokens.weight"][:, 0] += 0.1
            weights["lm_head.weight"][end, 0] += 1.0
        save_file(weights, policy / "model.safetensors", {"format": "pt"})


# --- one case --------------------------------------------------------------------------------------------------------


def run_case(work: tuple[str, dict[str, Any], Path, Path, bool]) -> tuple[str, Result]:
    name, case, root, old, write_old = work
    folder, kept = root / folder_name(name), old / folder_name(name)
    if case["old"] and not write_old:
        shutil.copytree(kept, folder)
    else:
        folder.mkdir()
        shutil.copy(root / "rewards.py", folder)
    try:
        with contextlib.chdir(folder):
            result = train_case(case, folder, write_old)
        if write_old:
            shutil.copytree(folder, kept)
        return name, result
    except Exception as error:
        return name, {"error": f"{type(error).__name__}: {error}".replace(str(root), "ROOT")}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def folder_name(case: str) -> str:
    return re.sub(r"\W+", "-", case)


def train_case(case: Mapping[str, Any], folder: Path, write_old: bool) -> Result:
    import ascent

    *earlier, (run, recipe) = case["stages"].items()
    notes: list[str] = []
    options = {"progress": False, "processes": case["ranks"], "say": notes.append}
    for place, stage in earlier:
        ascent.train(stage, run=place, **options)
    if case["objects"]:
        sys.path.insert(0, str(folder))
        options["rewards"] = [importlib.import_module("rewards").near]
    if case["rounds"]:
        ascent.iterate(recipe, run=run, progress=False, say=notes.append)
        return fingerprint_rounds(Path(run)) | {"notes": comparable(notes, folder)}
    if case["old"] and not write_old:
        return resume_old(run, options) | {"notes": comparable(notes, folder)}
    if case["ranks"] > 1:  # new processes read their recipe from a file
        (folder / "recipe.yaml").write_text(json.dumps(nested(recipe)))
        recipe = "recipe.yaml"
    ascent.train(recipe, run=run, **options)
    result = fingerprint(Path(run)) | {"notes": comparable(notes, folder)}
    if write_old:
        shutil.rmtree(last_checkpoint(Path(run)))
    elif case["resumed"]:
        shutil.rmtree(last_checkpoint(Path(run)))
        ascent.resume(run, **options)
        again = fingerprint(Path(run))
        parts = ("weights", "checkpoint", "rollouts")
        result["resumed"] = {part: again[part] == result[part] for part in parts}
    return result


def nested(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe file's form of dotted keys."""
    tree: dict[str, Any] = {}
    for key, value in recipe.items():
        *outer, last = key.split(".")
        place = tree
        for name in outer:
            place = place.setdefault(name, {})
        place[last] = value
    return tree


def resume_old(run: str, options: Mapping[str, Any]) -> Result:
    """Reads a run that an old version wrote, and goes on with it."""
    import ascent

    texts = list(ascent.sample(run, ["sort 3 1 2 ="], max_new_tokens=6))
    diagnosis = ascent.diagnose_run(run, write=False)
    ascent.resume(run, **options)
    result = fingerprint(Path(run))
    result["rollouts"] |= {"ascent.sample": [repr(text) for text in texts]}
    result["rollouts"] |= {"ascent.diagnose_run": repr(diagnosis)}
    return result


def comparable(notes: list[str], folder: Path) -> list[str]:
    return [MEASURED.sub("#", note.replace(str(folder), "FOLDER")) for note in notes]


# --- what a run leaves -----------------------------------------------------------------------------------------------


def fingerprint(run: Path) -> Result:
    checkpoint = last_checkpoint(run)
    weights, state = {}, {}
    for file in sorted(path for path in checkpoint.rglob("*") if path.is_file()):
        name = str(file.relative_to(checkpoint))
        if file.suffix == ".safetensors":
            part = weights if name.startswith(("model/", "critic/")) else state
            part[name] = digest_tensors(file)
        elif file.name not in ("manifest.json", "adapter_config.json"):  # they hold sizes and paths
            state |= digest_json(file, name)
    return {
        "weights": weights,
        "checkpoint": state,
        "rollouts": digest_lines(run / "samples.jsonl"),
        "metrics": digest_lines(run / "metrics.jsonl"),
        "config": flat_config(run / "config.yaml"),
    }


def fingerprint_rounds(folder: Path) -> Result:
    result: Result = {}
    for run in sorted(path.parent for path in folder.rglob("metrics.jsonl")):
        for part, values in fingerprint(run).items():
            named = {f"{run}: {key}": value for key, value in values.items()}
            result[part] = result.get(part, {}) | named
    return result


def last_checkpoint(run: Path) -> Path:
    return max((run / "checkpoints").iterdir(), key=lambda place: int(place.name))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def digest_tensors(file: Path) -> str:
    """Of names, dtypes, shapes and bytes; not of their order in the file."""
    import torch
    from safetensors.torch import load_file

    found = hashlib.sha256()
    for name, tensor in sorted(load_file(file).items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def digest_json(file: Path, name: str) -> dict[str, str]:
    """One for every second-level key, such as "state.json: source.mixture"."""
    try:
        content = json.loads(file.read_text())
    except ValueError:
        return {name: digest(file.read_bytes())}
    pieces: dict[str, Any] = {}
    for key, value in content.items() if isinstance(content, dict) else (("", content),):
        inner = value if isinstance(value, dict) and value else {"": value}
        pieces |= {f"{name}: {key}.{part}".rstrip("."): inner[part] for part in inner}
    return {key: digest(json.dumps(pieces[key], sort_keys=True).encode()) for key in pieces}


def digest_lines(file: Path) -> dict[str, str]:
    """One for every key of a file's lines: of its values, in order. Times are left out."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {
        key: digest(json.dumps([line.get(key, "absent") for line in lines]).encode())
        for key in sorted({key for line in lines for key in line})
        if not key.startswith("time")
    }


def flat_config(file: Path) -> dict[str, Any]:
    import yaml

    flat: dict[str, Any] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                add(f"{prefix}.{key}".lstrip("."), inner)
        else:
            flat[prefix] = value

    add("", yaml.safe_load(file.read_text()))
    return flat


if __name__ == "__main__":
    main(*sys.argv[1:])
