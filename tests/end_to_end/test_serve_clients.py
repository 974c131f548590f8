"""Programs that others wrote talk to `ascent serve`: the official openai client, and lm-eval."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ascent.data.render import Renderer
from ascent.engines.native.engine import NativeEngine
from ascent.engines.token_logprobs import token_logprobs
from ascent.models.load import load
from ascent.records import Message, Request
from tests.engines.served import KEY, Served, served, tiny_folder

OPENAI_CLIENT = Path(__file__).parent / "openai_client.py"
CHAT = (Message("system", "Be brief."), Message("user", "What is 2+2?"))  # as there
PYTHON = os.environ.get("ASCENT_CLIENTS_PYTHON", "")
pytestmark = pytest.mark.skipif(
    not PYTHON,
    reason="ASCENT_CLIENTS_PYTHON names no Python with openai, lm-eval[api] and transformers",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tiny_folder(tmp_path_factory.mktemp("models") / "a")) as found:
        yield found


@pytest.fixture(scope="module")
def engine(server: Served) -> NativeEngine:
    model = load(server.folder)
    return NativeEngine(model, Renderer(model.tokenizer).stop_ids)


def run(*words: str, folder: Path) -> str:
    """A command of the other environment, which must not see this one."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = own | {
        "OPENAI_API_KEY": KEY,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hub"),
    }
    command = [PYTHON, *words]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=folder, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_official_openai_client(server: Served, engine: NativeEngine, tmp_path: Path) -> None:
    found = json.loads(run(str(OPENAI_CLIENT), server.url, KEY, folder=tmp_path))
    print("openai", found["version"])
    model, renderer = engine.model, Renderer(engine.model.tokenizer)
    prompt = tuple(model.tokenizer.encode("1+1="))
    chat = renderer.prompt(CHAT)
    sums = [tuple(model.tokenizer.encode(f"{n}+{n}=")) for n in range(64)]
    plain, talk = engine.sample(
        [
            Request("a", 0, prompt, 8, seed=0, greedy=True),
            Request("b", 0, chat, 12, seed=0, greedy=True),
        ]
    )
    if plain.prompt_id == "b":
        plain, talk = talk, plain
    assert found["model"] == "tiny" and len(found["at_once"]) == len(sums) == 64
    assert (
        found["tokens"] == [list(plain.tokens)] * 2
        and found["logprobs"] == [list(plain.logprobs)] * 2
    )
    assert found["usage"] == len(prompt) + 2 * len(plain.tokens)
    assert (
        found["chat"]
        == found["stream"]
        == model.tokenizer.decode(talk.tokens, skip_special_tokens=True)
    )
    assert found["chat_logprobs"] == list(talk.logprobs) and found["stream_usage"] == len(
        talk.tokens
    )
    assert found["refusals"] == [
        "BadRequestError",
        "BadRequestError",
        "NotFoundError",
        "AuthenticationError",
    ]


QUESTIONS = [
    {
        "question": f"{n}+{n}=",
        "choices": [str(2 * n), str(3 * n), "seven"],
        "gold": 0,
        "answer": str(2 * n),
    }
    for n in range(1, 9)
]
TASKS = {
    "own_choices": {
        "output_type": "multiple_choice",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}",
        "metric_list": [{"metric": "acc"}],
    },
    "own_answers": {
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "exact_match"}],
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 6, "do_sample": False},
    },
}


def write_tasks(folder: Path) -> None:
    (folder / "sums.jsonl").write_text("".join(json.dumps(each) + "\n" for each in QUESTIONS))
    for name, task in TASKS.items():
        files = {
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(folder / "sums.jsonl")}},
        }
        common = {
            "task": name,
            **files,
            "test_split": "test",
            "doc_to_text": "{{question}}",
            "target_delimiter": "",
        }
        (folder / f"{name}.yaml").write_text(json.dumps(common | task))  # JSON is YAML


def lm_eval(
    folder: Path, tokenizer: Path, kind: str, base_url: str, tasks: str, *options: str
) -> dict[str, Any]:
    args = f"model=tiny,base_url={base_url},num_concurrent=4,max_retries=1,tokenizer={tokenizer},max_length=512"
    run(
        *(
            "-m",
            "lm_eval",
            "--model",
            kind,
            "--model_args",
            args,
            "--tasks",
            tasks,
            "--include_path",
            str(folder),
        ),
        *("--output_path", str(folder / "out"), "--log_samples", *options),
        folder=folder,
    )
    samples: dict[str, Any] = {}
    for file in sorted((folder / "out").rglob("samples_*.jsonl")):
        name = next(each for each in TASKS if each in file.name)
        samples[name] = [json.loads(line) for line in file.read_text().splitlines()]
        file.unlink()
    return samples


def test_lm_eval(server: Served, engine: NativeEngine, tmp_path: Path) -> None:
    """Log-likelihoods are those of training, greedy answers the engine's."""
    write_tasks(tmp_path)
    encode = engine.model.tokenizer.encode
    found = lm_eval(
        tmp_path,
        server.folder,
        "local-completions",
        f"{server.url}/completions",
        "own_choices,own_answers",
    )
    assert len(found["own_choices"]) == len(found["own_answers"]) == len(QUESTIONS)
    for row in found["own_choices"]:
        question = QUESTIONS[row["doc_id"]]
        for choice, (value, _) in zip(question["choices"], row["filtered_resps"], strict=True):  # type: ignore[arg-type]
            start, whole = (
                len(encode(question["question"])),
                encode(f"{question['question']}{choice}"),
            )
            own = sum(
                each.logprob for each in token_logprobs(engine.model, whole, 1)[start:] if each
            )
            assert float(value) == pytest.approx(own, abs=1e-5)
    for row in found["own_answers"]:
        prompt = tuple(encode(QUESTIONS[row["doc_id"]]["question"]))
        (same,) = engine.sample([Request("a", 0, prompt, 6, seed=0, greedy=True, stop=("\n",))])
        text = engine.model.tokenizer.decode(same.tokens, skip_special_tokens=True).split("\n")[0]
        assert row["filtered_resps"] == [text]
    chat = f"{server.url}/chat/completions"
    (talks,) = lm_eval(
        tmp_path,
        server.folder,
        "local-chat-completions",
        chat,
        "own_answers",
        "--apply_chat_template",
    ).values()
    renderer = Renderer(engine.model.tokenizer)
    for row in talks:
        prompt = renderer.prompt([Message("user", str(QUESTIONS[row["doc_id"]]["question"]))])
        (same,) = engine.sample([Request("a", 0, prompt, 6, seed=0, greedy=True, stop=("\n",))])
        text = engine.model.tokenizer.decode(same.tokens, skip_special_tokens=True).split("\n")[0]
        assert row["filtered_resps"] == [text]
