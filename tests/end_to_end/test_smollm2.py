"""A real pretrained chat model, SmolLM2-135M-Instruct: its conversations are its own, and a few steps teach it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ascent.api.train import assemble
from ascent.cli.main import app
from ascent.data.render import Renderer, load_tokenizer
from ascent.plan import resolve
from ascent.plan.load import load_config
from ascent.records import Message
from ascent.runs.folder import read_run
from ascent.setup.evaluation import evaluated

SMOLLM2 = os.environ.get("ASCENT_SMOLLM2", "")
pytestmark = [
    pytest.mark.skipif(
        not SMOLLM2, reason="set ASCENT_SMOLLM2 to a folder with SmolLM2-135M-Instruct"
    ),
]

CONVERSATIONS = {
    "one turn": [("user", "What is the capital of France?"), ("assistant", "Paris.")],
    "system": [
        ("system", "You answer in one word."),
        ("user", "What is 2 + 2?"),
        ("assistant", "Four"),
    ],
    "several turns": [
        ("user", "Name a prime number."),
        ("assistant", "7"),
        ("user", "And a larger one?"),
        ("assistant", "11, for example.\n\n  Or 13."),
        ("user", "Thanks!"),
        ("assistant", "You are welcome."),
    ],
    "system and several turns": [
        ("system", "Du bist höflich. 你好"),
        ("user", "Schreibe ein Programm."),
        ("assistant", "```python\ndef add(a, b):\n\treturn a + b\n```"),
        ("user", "Und jetzt auf Japanisch: こんにちは 🙂"),
        ("assistant", "わかりました。"),
    ],
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversations_are_rendered_as_transformers_renders_them(name: str) -> None:
    """Text and ids; what the template writes after the last end token (a line end) is cut, as docs/data.md says."""
    tokenizer = load_tokenizer(SMOLLM2)
    renderer = Renderer(tokenizer, train_on="assistant")
    turns = [Message(role, content) for role, content in CONVERSATIONS[name]]  # type: ignore[arg-type]
    plain = [{"role": turn.role, "content": turn.content} for turn in turns]

    asked = tokenizer.apply_chat_template(plain[:-1], add_generation_prompt=True, return_dict=False)
    assert list(renderer.prompt(turns[:-1])) == asked

    text = str(tokenizer.apply_chat_template(plain, tokenize=False))
    whole = tokenizer.apply_chat_template(plain, return_dict=False)
    shown = renderer.example(turns)
    ours = shown.tokens.tolist()
    assert tokenizer.decode(ours) + "\n" == text
    assert ours == whole[: len(ours)]
    assert tokenizer.decode(whole[len(ours) :]) == "\n"

    trained = [token for token, on in zip(ours, shown.loss_mask.tolist(), strict=True) if on]
    answers = [turn.content + "<|im_end|>" for turn in turns if turn.role == "assistant"]
    assert tokenizer.decode(trained) == "".join(answers)
    assert renderer.stop_ids == {tokenizer.eos_token_id} and tokenizer.eos_token == "<|im_end|>"


def test_an_answer_that_starts_with_a_space_still_follows_the_prompt_a_sampler_gets() -> None:
    """Tokenized as one text, line end and spaces would become one token that no sampler could have been given."""
    tokenizer = load_tokenizer(SMOLLM2)
    renderer = Renderer(tokenizer, train_on="assistant")
    turns = [Message("user", "Name a prime number."), Message("assistant", "  11")]
    plain = [{"role": turn.role, "content": turn.content} for turn in turns]
    prompt, ours = renderer.prompt(turns[:1]), renderer.example(turns).tokens.tolist()
    assert tokenizer.decode(ours) + "\n" == tokenizer.apply_chat_template(plain, tokenize=False)
    assert tuple(ours[: len(prompt)]) == prompt
    whole = tokenizer.apply_chat_template(plain, return_dict=False)
    assert tuple(whole[: len(prompt)]) != prompt


# A made-up habit, so that no pretraining has taught it: answers are shouted and end with a word of their own.
CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "Egypt": "Cairo",
    "Norway": "Oslo",
    "Greece": "Athens",
    "Poland": "Warsaw",
    "Kenya": "Nairobi",
    "Cuba": "Havana",
    "Peru": "Lima",
    "Chile": "Santiago",
    "Austria": "Vienna",
    "Ireland": "Dublin",
    "Canada": "Ottawa",
    "Russia": "Moscow",
}


def test_a_few_steps_lower_the_held_out_loss(tmp_path: Path) -> None:
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"What is the capital of {country}?"},
                {"role": "assistant", "content": f"{city.upper()} it is, my captain!"},
            ]
        }
        for country, city in CAPITALS.items()
    ]
    for name, part in (("train", rows[:10]), ("heldout", rows[10:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"algorithm: sft\n"
        f"model: {{policy: '{SMOLLM2}'}}\n"
        f"data: {{train: '{tmp_path}/train.jsonl', evaluate: '{tmp_path}/heldout.jsonl', batch_size: 5}}\n"
        f"update: {{learning_rate: 1.0e-4, tokens_per_microbatch: 2048}}\n"
        f"run: {{steps: 4, save_every: 4, evaluate_every: 2}}\n"
    )
    training = assemble(resolve(load_config(str(recipe))), tmp_path / "before")
    losses = [evaluated(training.learner, training.heldout, training.objective)["eval/loss/total"]]
    del training
    done = CliRunner().invoke(
        app, ["train", str(recipe), "--run", str(tmp_path / "run")], catch_exceptions=False
    )
    assert done.exit_code == 0, done.stderr
    losses += [
        row["eval/loss/total"]
        for row in read_run(tmp_path / "run").metrics
        if "eval/loss/total" in row
    ]
    print(f"held-out loss after 0, 2 and 4 steps: {', '.join(f'{loss:.3f}' for loss in losses)}")
    assert len(losses) == 3
    assert losses[0] > losses[1] > losses[2]
    assert losses[2] < 0.7 * losses[0]
