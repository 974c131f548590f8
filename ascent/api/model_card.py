"""The model card of an exported model: README.md with what its run says about it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ascent import __version__
from ascent.algorithms import TABLE
from ascent.api.compare_runs import format_setting, score_at, settings_of
from ascent.api.input_changes import read as read_inputs
from ascent.config.changes import flatten_mapping
from ascent.config.yaml_text import read as read_yaml
from ascent.config.yaml_text import write as write_yaml
from ascent.metrics import EVAL
from ascent.models.heads import NORMALIZATION
from ascent.runs.curves import MAIN, comparable, points
from ascent.runs.folder import CONFIG, INPUTS, Run, read_run
from ascent.setup.fingerprints import REVISION

SHOWN = ("model.policy", "data.train", "data.evaluate", "run.steps", "seed", "update.learning_rate")
OPTIONAL = (
    "data.batch_size",
    "rollouts.prompts_per_step",
    "rollouts.group_size",
    "model.lora",
    "model.quantize",
)
# A local path, maybe after the name of a layout: gsm8k:/data/x. Its folders say where somebody keeps files.
LOCAL = re.compile(r"((?:\w+:)?)(?:~|\.{0,2})/(?:.*/)?([^/]*)")


def run_of(model_folder: Path) -> Run | None:
    """The run of a checkpoint's model folder; None where it is none."""
    checkpoint = model_folder.parent
    root = checkpoint.parent.parent
    return read_run(root) if checkpoint.name.isdecimal() and (root / CONFIG).is_file() else None


def write_card(folder: Path, run: Run | None, name: str, step: int) -> None:
    """Write README.md into an exported folder, unless it holds one."""
    if not (folder / "README.md").exists():
        (folder / "README.md").write_text(model_card(folder, run, name, step), encoding="utf-8")


def model_card(folder: Path, run: Run | None, name: str, step: int) -> str:
    """The card: how to load the model, and of a run its data, recipe, algorithm and held-out metrics."""
    scores = _is_classifier(folder)
    config = _public(read_yaml(run.config, str(run.path))) if run is not None else {}
    settings = dict(flatten_mapping(config)) if config else {}
    front = {
        "library_name": "transformers",
        "pipeline_tag": "text-classification" if scores else "text-generation",
        "tags": ["ascent", *([settings["algorithm"].rpartition(":")[2]] if settings else [])],
        **_hub_links(run),
    }
    head = (
        "---\n"
        + "".join(f"{key}: {json.dumps(value)}\n" for key, value in front.items())
        + "---\n\n"
    )
    parts = [
        f"# {name.rpartition('/')[2]}\n",
        *([_about(settings)] if settings else []),
        _loading(name, scores),
    ]
    if NORMALIZATION in _config(folder):
        mean = _config(folder)[NORMALIZATION]["mean"]
        parts.append(
            f"Ascent subtracts {mean:.6g} from these scores, so that demonstrations score 0 on average.\n"
        )
    if run is not None:
        parts += [_training(settings, run, step), _metrics(run, step), _recipe(config)]
    return head + "\n".join(parts)


def _is_classifier(folder: Path) -> bool:
    return any(
        str(each).endswith("ForSequenceClassification")
        for each in _config(folder).get("architectures") or []
    )


def _config(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))


def _hub_links(run: Run | None) -> dict[str, Any]:
    """The base model and the training data, where the run took them from the hub."""
    inputs = (
        read_inputs(run.path, sys.maxsize).inputs
        if run is not None and (run.path / INPUTS).is_file()
        else {}
    )
    base, data = inputs.get("model.policy"), inputs.get("data.train")
    found: dict[str, Any] = (
        {"base_model": base.name} if base is not None and REVISION in base.content else {}
    )
    cached = re.search(r"/datasets--([^/]+)--([^/]+)/", data.at) if data is not None else None
    return found | ({"datasets": ["/".join(cached.groups())]} if cached else {})


def _about(settings: Mapping[str, Any]) -> str:
    row = TABLE.get(settings["algorithm"])
    how = (
        f"`{settings['algorithm']}`" if row is None else f"{row.title} (`{row.name}`; {row.paper})"
    )
    base, data = settings["model.policy"], settings["data.train"]
    return f"Trained with Ascent {__version__} from `{base}` on `{data}` by {how}.\n"


def _loading(name: str, scores: bool) -> str:
    kind = "AutoModelForSequenceClassification" if scores else "AutoModelForCausalLM"
    use = (
        'score = model(**tokenizer(text, return_tensors="pt")).logits[0, 0].item()'
        if scores
        else 'output = model.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=256)\n'
        "print(tokenizer.decode(output[0], skip_special_tokens=True))"
    )
    return (
        f"## How to load\n\n```python\nfrom transformers import AutoTokenizer, {kind}\n\n"
        f"tokenizer = AutoTokenizer.from_pretrained({json.dumps(name)})\n"
        f"model = {kind}.from_pretrained({json.dumps(name)})\n"
        f'text = "..."  # a chat model: tokenizer.apply_chat_template(messages, tokenize=False, ...)\n{use}\n```\n'
    )


def _training(settings: Mapping[str, Any], run: Run, step: int) -> str:
    keys = [*SHOWN, *(key for key in OPTIONAL if settings.get(key) is not None)]
    rewards = [str(settings[key]) for key in settings if re.fullmatch(r"rewards\[\d+\]\.use", key)]
    rows = [
        (f"`{key}`", format_setting(settings[key])) for key in keys if settings.get(key) is not None
    ]
    rows += [("rewards", ", ".join(rewards))] if rewards else []
    rows.append(("checkpoint", f"step {step}"))
    packages = run.environment[-1].get("packages", {}) if run.environment else {}
    versions = [f"{key} {packages[key]}" for key in ("torch", "transformers") if key in packages]
    rows += [("versions", ", ".join(versions))] if versions else []
    return "## Training\n\n| | |\n|---|---|\n" + "".join(
        f"| {key} | {value} |\n" for key, value in rows
    )


def _metrics(run: Run, step: int) -> str:
    """Held-out metrics at the first comparable evaluation and at the exported step, with the interval over prompts
    where known."""
    rows, recipe = [], settings_of(run)
    for name in (each for each in MAIN if each.startswith(EVAL)):
        curve = [point for point in points(run.metrics, name) if point[0] <= step]
        if curve:
            last = score_at(run, name, curve[-1])
            interval = (
                f"{last.low:.3g} to {last.high:.3g}"
                if last.low is not None and last.high is not None
                else ""
            )
            first_step, value = comparable(name, curve, run.changes, recipe)[0]
            first = f"{value:.4g} (step {first_step:.0f})"
            rows.append(
                f"| `{name}` | {first} | {last.value:.4g} (step {last.step}) | {interval} |\n"
            )
    if not rows:
        return "## Held-out metrics\n\nNothing was evaluated on held-out data.\n"
    return (
        "## Held-out metrics\n\n| | first | last | 95% interval |\n|---|---|---|---|\n"
        + "".join(rows)
    )


def _recipe(config: Mapping[str, Any]) -> str:
    return f"## Recipe\n\n`ascent train recipe.yaml` with:\n\n```yaml\n{write_yaml(config).rstrip()}\n```\n"


def _public(value: Any) -> Any:
    """A value without the folders of local paths and without addresses of servers."""
    if isinstance(value, Mapping):
        return {key: _public(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_public(each) for each in value]
    if not isinstance(value, str):
        return value
    return (
        "(address)"
        if "://" in value
        else LOCAL.sub(r"\1\2", value)
        if LOCAL.fullmatch(value)
        else value
    )
