"""A loop of one's own gets what a recipe gets, bit for bit, and clear errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import ascent
from ascent.engines.native.engine import NativeEngine
from ascent.models import tiny
from ascent.models.load import load
from ascent.records import Reply
from tests.data import chat
from tests.setup.runs import weights_of

PAGE = Path(__file__).parents[2] / "docs" / "own-loop.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
LETTERS = "def letters(rollout):\n    return float(sum(map(str.isalpha, rollout.text)))\n"


def quiet(line: str) -> None:
    pass


def letters(rollouts: list[ascent.Rollout]) -> list[float]:
    return [float(sum(map(str.isalpha, each.text))) for each in rollouts]


def train(recipe: dict[str, Any], folder: Path) -> Any:
    return ascent.train(
        {"model.policy": "tiny:llama"} | recipe, run=folder, progress=False, say=quiet
    )


def losses(run: Any) -> list[float]:
    return [row["loss/total"] for row in run.metrics if "loss/total" in row]


def saved(policy: ascent.Policy, folder: Path) -> bytes:
    policy.save(folder)
    return (folder / "model.safetensors").read_bytes()


def run_snippet(name: str, most: int, monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[float]:
    """Run the page's loop of that name; the loss of each of its steps."""
    (text,) = [each for each in SNIPPETS if f'"runs/own-{name}"' in each]
    assert len(text.splitlines()) < most
    found: list[float] = []
    step = ascent.Policy.step

    def recorded(self: ascent.Policy, *words: Any, **options: Any) -> dict[str, float]:
        metrics = step(self, *words, **options)
        found.append(metrics["loss/total"])
        return metrics

    monkeypatch.chdir(folder)
    monkeypatch.setattr(ascent.Policy, "step", recorded)
    exec(compile(text, str(PAGE), "exec"), {})
    return found


def test_grpo_of_the_page_gives_the_recipes_loss_and_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = run_snippet("grpo", 40, monkeypatch, tmp_path)
    reward = (
        "    return sum(c in '0123456789 ' for c in rollout.text) / max(1, len(rollout.text))\n"
    )
    (tmp_path / "mine.py").write_text(f"def digits(rollout):\n{reward}")
    recipe = {
        "algorithm": "grpo",
        "data.train": "sort_digits:64",
        "rewards": [{"use": f"{tmp_path}/mine.py:digits"}],
        "rollouts": {"prompts_per_step": 4, "group_size": 8, "max_new_tokens": 8},
        "update.learning_rate": 1e-2,
        "run.steps": 4,
    }
    assert own == losses(train(recipe, tmp_path / "run")) and own[-1] > 1e-4
    assert (tmp_path / "runs/own-grpo/model.safetensors").read_bytes() == weights_of(
        tmp_path / "run", 4
    )


def check_grpo(dtype: str, parts: int, folder: Path, model: str = "tiny:llama") -> None:
    """Three steps of a loop and of a recipe, with `parts` updates each, end at the same weights."""
    (folder / "mine.py").write_text(LETTERS)
    recipe = {
        "algorithm": "grpo",
        "model.policy": model,
        "model.dtype": dtype,
        "data.train": "sort_digits:64",
        "rewards": [{"use": f"{folder}/mine.py:letters"}],
        "rollouts": {"prompts_per_step": 4, "group_size": 8, "max_new_tokens": 8},
        "update": {"learning_rate": 1e-2, "minibatches": parts},
        "run.steps": 3,
    }
    train(recipe, folder / "run")
    policy = ascent.Policy(model, dtype=dtype, learning_rate=1e-2, max_new_tokens=8)
    for _, chosen in zip(
        range(3), ascent.batches(ascent.load_data("sort_digits:64"), 4), strict=False
    ):
        rollouts = policy.sample(chosen, n=8)
        batch = policy.pack(rollouts, letters(rollouts))
        batch["ref_logprobs_T"] = policy.reference_logprobs(batch)
        batch = ascent.add_advantages(batch)
        for update in policy.minibatches(batch, parts) if parts > 1 else [batch]:
            policy.step(update, "grpo")
    assert saved(policy, folder / "own") == weights_of(folder / "run", 3)


def test_where_the_samplers_logprobs_are_not_the_trainers_the_weights_are_the_recipes(
    tmp_path: Path,
) -> None:
    # Narrow: where the processor has no bfloat16 instructions, a product takes 200 times as long as in float32.
    check_grpo(
        "bfloat16",
        2,
        tmp_path,
        str(tiny.create(tmp_path / "narrow", hidden=16, heads=2, intermediate=32)),
    )


def test_dpo_of_the_page_gives_the_recipes_loss_and_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = run_snippet("dpo", 25, monkeypatch, tmp_path)
    recipe = {
        "algorithm": "dpo",
        "data.train": "sort_digits:64",
        "data.batch_size": 8,
        "update.learning_rate": 1e-3,
        "run.steps": 4,
    }
    assert own == losses(train(recipe, tmp_path / "run")) and own[-1] < own[0]
    assert (tmp_path / "runs/own-dpo/model.safetensors").read_bytes() == weights_of(
        tmp_path / "run", 4
    )


def test_ppo_with_a_critic_epochs_and_microbatches_gives_the_recipes_weights(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(LETTERS)
    recipe = {
        "algorithm": "ppo",
        "data.train": "sort_digits:64",
        "rewards": [{"use": f"{tmp_path}/mine.py:letters"}],
        "rollouts": {"prompts_per_step": 8, "max_new_tokens": 8},
        "update": {
            "learning_rate": 1e-3,
            "minibatches": 2,
            "epochs": 2,
            "tokens_per_microbatch": 60,
        },
        "run.steps": 2,
    }
    train(recipe, tmp_path / "run")
    given: dict[str, Any] = {"learning_rate": 1e-3, "tokens_per_microbatch": 60}
    policy = ascent.Policy(
        "tiny:llama", {"update.adam_eps": 1e-5}, max_new_tokens=8, temperature=0.7, **given
    )
    critic = ascent.Policy("tiny:llama", ["update.adam_eps=1e-5"], head="critic", **given)
    prompts = ascent.load_data("sort_digits:64")
    for _, chosen in zip(range(2), ascent.batches(prompts, 8), strict=False):
        rollouts = policy.sample(chosen)
        batch = policy.pack(rollouts, letters(rollouts))
        batch["ref_logprobs_T"] = policy.reference_logprobs(batch)
        batch |= critic.outputs(batch, "values_T")
        for update in policy.minibatches(ascent.add_advantages(batch, "ppo"), 2, epochs=2):
            assert len(update) > 1
            policy.step(update, "ppo")
            critic.step(update, "ppo")
    assert saved(policy, tmp_path / "own") == weights_of(tmp_path / "run", 2)
    held = (tmp_path / "run/checkpoints/2/critic/model.safetensors").read_bytes()
    assert saved(critic, tmp_path / "critic") == held


@pytest.mark.parametrize(
    ("algorithm", "kind", "options"),
    [
        ("sft", "examples", {}),
        ("kto", "unpaired", {"beta": 0.2}),
        ("orpo", "pairs", {}),
        ("reward_model", "pairs", {}),
    ],
)
def test_rows_of_files_give_the_recipes_weights(
    algorithm: str, kind: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    recipe = {
        "algorithm": algorithm,
        "data.train": "sort_digits:40",
        "data.batch_size": 8,
        "run.steps": 2,
        "update": {"learning_rate": 1e-3, "tokens_per_microbatch": 150},
        "cells": {"loss": options} if options else {},
    }
    run = train(recipe, tmp_path / "run")
    epsilon = {"update.adam_eps": ascent.TABLE[algorithm].defaults.get("update.adam_eps", 1e-8)}
    head = "scalar" if algorithm == "reward_model" else "tokens"
    policy = ascent.Policy(
        "tiny:llama", epsilon, head=head, learning_rate=1e-3, tokens_per_microbatch=150
    )
    found = []
    records = ascent.load_data("sort_digits:40", kind)
    for _, chosen in zip(range(2), ascent.batches(records, 8), strict=False):
        batch = policy.pack(chosen)
        if "reference" in ascent.TABLE[algorithm].needs:
            batch["ref_logprobs_T"] = policy.reference_logprobs(batch)
            if "mismatched" in batch:
                other = batch["mismatched"]
                other["ref_logprobs_T"] = policy.reference_logprobs(other)
        found.append(policy.step(batch, algorithm, **options)["loss/total"])
    assert found == losses(run)


def test_lora_trains_its_adapter_and_its_reference_is_the_base() -> None:
    policy = ascent.Policy("tiny:llama", lora=2, learning_rate=1e-2, max_new_tokens=4)
    rollouts = policy.sample(["a", "b"], n=2)
    batch = policy.pack(rollouts, [1.0, 0.0, 0.0, 1.0])
    batch["ref_logprobs_T"] = policy.reference_logprobs(batch)
    assert torch.equal(batch["ref_logprobs_T"], policy.logprobs(batch))
    policy.step(ascent.add_advantages(batch), "grpo")
    assert torch.equal(batch["ref_logprobs_T"], policy.reference_logprobs(batch))
    assert not torch.equal(batch["ref_logprobs_T"], policy.logprobs(batch))


def test_distillation_gives_the_recipes_loss(tmp_path: Path) -> None:
    recipe = {
        "algorithm": "kd",
        "model.teacher": "tiny:qwen2",
        "data.train": "sort_digits:24",
        "data.batch_size": 8,
        "update": {"learning_rate": 1e-3, "tokens_per_microbatch": 150},
        "run.steps": 2,
    }
    run = train(recipe, tmp_path / "run")
    student = ascent.Policy("tiny:llama", learning_rate=1e-3, tokens_per_microbatch=150)
    teacher = ascent.Policy("tiny:qwen2")
    examples = ascent.load_data("sort_digits:24", "examples")
    found = []
    for _, chosen in zip(range(2), ascent.batches(examples, 8), strict=False):
        with pytest.raises(ValueError, match=r"kd needs teacher_TV.*teacher\.logits\(each\)"):
            student.step(student.pack(chosen), "kd")
        batches = student.microbatches(student.pack(chosen))
        assert len(batches) > 1
        for each in batches:
            each["teacher_TV"] = teacher.logits(each)
        found.append(student.step(batches, "kd")["loss/total"])
    assert found == losses(run)


class Twice:
    """Answers the first turn with its length, and ends the episode after the second."""

    def __init__(self, prompt: ascent.Prompt) -> None:
        self.prompt, self.turns = prompt, 0

    def first(self) -> ascent.Prompt:
        return self.prompt

    def reply(self, text: str) -> Reply:
        self.turns += 1
        return Reply(ascent.Message("user", f" {len(text)} ") if self.turns == 1 else None)


def twice(prompt: ascent.Prompt) -> Twice:
    return Twice(prompt)


def test_rollouts_with_an_environment_are_those_of_a_recipe(tmp_path: Path) -> None:
    recipe = {
        "algorithm": "rlvr",
        "data.train": "sort_digits:16",
        "rewards": [{"use": f"{tmp_path}/mine.py:letters"}],
        "env": {"use": twice, "max_turns": 3},
        "rollouts": {"prompts_per_step": 4, "group_size": 4, "max_new_tokens": 60},
        "update.learning_rate": 1e-3,
        "run.steps": 2,
    }
    (tmp_path / "mine.py").write_text(LETTERS)
    run = train(recipe, tmp_path / "run")
    policy = ascent.Policy(
        "tiny:llama", env={"use": twice, "max_turns": 3}, learning_rate=1e-3, max_new_tokens=60
    )
    found = []
    for _, chosen in zip(
        range(2), ascent.batches(ascent.load_data("sort_digits:16"), 4), strict=False
    ):
        rollouts = policy.sample(chosen, n=4)
        assert any(len(each.turns) == 2 for each in rollouts)
        batch = ascent.add_advantages(policy.pack(rollouts, letters(rollouts)), "rlvr")
        found.append(policy.step(batch, "rlvr")["loss/total"])
    policy.close()
    assert found == losses(run)


@pytest.mark.parametrize(("lora", "offload"), [(None, False), (2, False), (None, True)])
def test_a_loop_continues_from_its_checkpoint_bit_for_bit(
    lora: int | None, offload: bool, tmp_path: Path
) -> None:
    base = ascent.Policy("tiny:llama")
    base.save(tmp_path / "base")
    prompts = ascent.load_data("sort_digits:32")

    def run(steps: int, folder: Path) -> ascent.Policy:
        keys = {"update.optimizer_offload": offload}
        policy = ascent.Policy(
            tmp_path / "base", keys, learning_rate=1e-2, max_new_tokens=6, lora=lora
        )
        done = policy.restore(folder)
        for step, chosen in zip(range(1, steps + 1), ascent.batches(prompts, 4), strict=False):
            if step > done:
                rollouts = policy.sample(chosen, n=4)
                batch = policy.pack(rollouts, letters(rollouts))
                batch["ref_logprobs_T"] = policy.reference_logprobs(batch)
                policy.step(ascent.add_advantages(batch), "grpo")
                policy.checkpoint(folder, step)
        return policy

    whole = run(4, tmp_path / "whole")
    run(2, tmp_path / "parts")
    again = run(4, tmp_path / "parts")
    assert (again.steps, again.calls) == (4, 4)
    assert again.sample(["a"], n=2) == whole.sample(["a"], n=2)
    one, other = (dict(each.model.named_parameters()) for each in (whole, again))
    assert one and all(torch.equal(one[name], other[name]) for name in one)


def test_a_restored_loop_samples_as_many_rows_at_once(tmp_path: Path) -> None:
    """How many follows from the longest sequence of all before, and decides the last bits of log-probs on a GPU."""

    def policy() -> ascent.Policy:
        return ascent.Policy("tiny:llama", max_new_tokens=6)

    def engine(of: ascent.Policy) -> NativeEngine:
        of.sample(["1+1="])
        found = of._sampler._engine
        assert isinstance(found, NativeEngine)
        return found

    loop = policy()
    for prompt in ("1+1=", "1+" * 300 + "1="):
        loop.sample([prompt])
    loop.checkpoint(tmp_path, 1)
    again = policy()
    assert again.restore(tmp_path) == 1
    one, other = engine(loop), engine(again)
    assert (one.max_num_seqs, one.max_model_len) == (other.max_num_seqs, other.max_model_len)
    assert one.max_model_len > engine(policy()).max_model_len


def test_samples_follow_the_weights_and_differ_from_call_to_call() -> None:
    policy = ascent.Policy("tiny:llama", learning_rate=0.1, max_new_tokens=6)
    before = policy.sample(["1+1="], greedy=True)[0]
    first, second = policy.sample(["1+1="], n=2)
    assert len({first.text, second.text, policy.sample(["1+1="])[0].text}) == 3
    assert ascent.Policy("tiny:llama", max_new_tokens=6).sample(["1+1="], n=2)[1] == second
    batch = policy.pack([first, second], [1.0, -1.0])
    for _ in range(3):
        policy.step(ascent.add_advantages(batch), "grpo", kl=False)
    after = policy.sample(["1+1="], greedy=True)[0]
    assert (policy.steps, set(after.turns[0].completion.versions)) == (3, {3})
    assert after.text != before.text


def test_prompts_are_texts_messages_or_records() -> None:
    policy = ascent.Policy("tiny:llama", max_new_tokens=2)
    prompt = ascent.Prompt("0", (ascent.Message("user", "1+1="),))
    one, other, third = (
        policy.sample([each], greedy=True)[0].turns[0].observed
        for each in ("1+1=", [{"role": "user", "content": "1+1="}], prompt)
    )
    assert one == other == third


def test_messages_are_read_as_those_of_data(tmp_path: Path) -> None:
    """Tool calls are shown to the template, and OpenAI's empty content beside them; ShareGPT's keys are known."""
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
        "CALL {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    policy = ascent.Policy(
        str(tiny.create(tmp_path / "model", chat_template=template)), max_new_tokens=2
    )
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}],
    }
    asked = [{"from": "human", "value": "1+2?"}, call, {"role": "tool", "content": "3"}]
    (found,) = policy.sample([asked])
    (read,) = policy.sample(ascent.load_data([{"messages": asked}]))
    assert found.turns[0].observed == read.turns[0].observed
    assert found.prompt.messages == read.prompt.messages and "CALL add" in policy.tokenizer.decode(
        read.turns[0].observed
    )
    with pytest.raises(ValueError, match=r"prompt 1: messages\[0\] has the role 'boss'"):
        policy.sample(["1+1=", [{"role": "boss", "content": "go"}]])


def test_a_longer_prompt_than_before_gets_a_larger_engine() -> None:
    policy, other = (ascent.Policy("tiny:llama", max_new_tokens=4) for _ in range(2))
    policy.sample(["a"])
    other.sample(["b" * 300])
    assert policy.sample(["c" * 400, "d"], n=2) == other.sample(["c" * 400, "d"], n=2)


def test_a_record_that_fits_no_microbatch_is_refused() -> None:
    policy = ascent.Policy("tiny:llama", {"model.dtype": "auto"}, tokens_per_microbatch=20)
    batch = policy.pack(
        ascent.load_data([{"prompt": "a" * 15, "completion": "b" * 15}], "examples")
    )
    with pytest.raises(
        ValueError, match=r"has 31 tokens, more than the 20 of a micro-batch.*tokens_per_microbatch"
    ):
        policy.step(batch, "sft")
    with pytest.raises(ValueError, match="1531 tokens, but the model holds 1024"):
        policy.pack(ascent.load_data([{"prompt": "a" * 15, "completion": "b" * 1515}], "examples"))


def test_the_learning_rate_can_be_set_between_steps() -> None:
    policy = ascent.Policy("tiny:llama", learning_rate=1e-3)
    batch = policy.pack(ascent.load_data("sort_digits:4", "examples"))
    assert policy.step(batch, "sft")["optim/lr"] == pytest.approx(1e-3)
    policy.learning_rate = 5e-4
    assert policy.step(batch, "nll")["optim/lr"] == pytest.approx(5e-4)


def test_a_restored_loop_has_the_learning_rate_that_was_set(tmp_path: Path) -> None:
    def made() -> ascent.Policy:
        return ascent.Policy("tiny:llama", learning_rate=1e-3)

    policy, restored = made(), made()
    batch = policy.pack(ascent.load_data("sort_digits:4", "examples"))
    policy.step(batch, "sft")
    policy.learning_rate = 1e-5
    policy.checkpoint(tmp_path, 1)
    assert restored.restore(tmp_path) == 1 and restored.learning_rate == 1e-5
    assert policy.step(batch, "sft") == restored.step(batch, "sft")
    for one, other in zip(
        policy.model.module.parameters(), restored.model.module.parameters(), strict=True
    ):
        assert torch.equal(one, other)


def test_the_options_of_a_function_are_those_of_the_call() -> None:
    """Tensors whose texts are the same, and a closure that changes."""
    policy = ascent.Policy("tiny:llama")
    batch = policy.pack(ascent.load_data("sort_digits:4", "examples"))

    def weighted(logprobs_T: torch.Tensor, *, w: torch.Tensor) -> torch.Tensor:
        return -logprobs_T * w

    losses = [
        policy.evaluate(batch, weighted, w=torch.tensor(w))["loss/total"]
        for w in (0.10001, 0.10004)
    ]
    assert (
        losses[1] == pytest.approx(losses[0] * 0.10004 / 0.10001, rel=1e-6)
        and losses[0] != losses[1]
    )


@pytest.mark.parametrize("options", [{"count": 0}, {"count": -1}, {"count": 2, "epochs": 0}])
def test_no_minibatches_are_refused(options: dict[str, int]) -> None:
    policy = ascent.Policy("tiny:llama")
    batch = policy.pack(ascent.load_data("sort_digits:4", "examples"))
    with pytest.raises(ValueError, match="would train on nothing; it must be at least 1"):
        list(policy.minibatches(batch, **options))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def policy() -> ascent.Policy:
    return ascent.Policy("tiny:llama", max_new_tokens=4)


@pytest.fixture(scope="module")
def rollouts(policy: ascent.Policy) -> list[ascent.Rollout]:
    return policy.sample(["a", "b"], n=2)


GOLD = {"gold_nll": {"weight": 1.0}}


def pairs() -> Any:
    return ascent.load_data("sort_digits:2", "pairs")


def unpaired(policy: ascent.Policy) -> Any:
    batch = policy.pack(ascent.load_data("sort_digits:2", "unpaired"))
    return batch | {"ref_logprobs_T": policy.reference_logprobs(batch)}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda p, r: p.sample("a"), "prompts='a', but sample takes a list"),
        (
            lambda p, r: p.sample([{"prompt": "a"}]),
            r"prompt 0 is .*Rows of a dataset: ascent.load_data",
        ),
        (lambda p, r: p.sample([["a"]]), "it must be a text, a list of messages or a Prompt"),
        (lambda p, r: p.sample([[{"role": "user"}]]), r"prompt 0: messages\[0\] has no 'content'"),
        (lambda p, r: ascent.Policy("tiny:llama", env="mzae").sample(["a"]), "mzae"),
        (lambda p, r: p.sample(["a"], n=0), "n=0, but at least 1"),
        (lambda p, r: p.pack([]), "at least one rollout or record"),
        (lambda p, r: p.pack(r, [1.0]), "1 rewards for 4 rollouts; give one for each"),
        (lambda p, r: p.pack(r, [1, 2, 3, {"a": 1}]), "a reward is a number, or None"),
        (
            lambda p, r: p.step(r, "grpo"),
            "step takes a packed batch, not list; policy.pack makes one",
        ),
        (lambda p, r: p.step(None, "grpo"), "step takes a packed batch, not NoneType"),
        (lambda p, r: p.step(p.pack(r), "grop"), "no algorithm named 'grop'; did you mean .*grpo"),
        (lambda p, r: p.step(p.pack(pairs()), "dpo", extra_losses=GOLD), "reference_logprobs"),
        (lambda p, r: p.step(p.pack(pairs()), "simpo", extra_losses=GOLD), "needs gold_B; this"),
        (
            lambda p, r: p.step(p.pack(r), 3),
            "a loss is a name of the table, a Row or a function, not 3",
        ),
        (lambda p, r: p.step(p.pack(r), "grpo", kl=False), "needs advantages_T, .*add_advantages"),
        (
            lambda p, r: p.step(ascent.add_advantages(p.pack(r, [1, 0, 0, 1])), "grpo"),
            "reference_logprobs",
        ),
        (
            lambda p, r: p.logprobs(p.pack(r) | {"weights_B": torch.ones(3)}),
            r'batch\["weights_B"\] has shape \(3,\)',
        ),
        (
            lambda p, r: p.step(unpaired(p), "kto"),
            r"mismatched answers too: inner = batch\['mismatched'\]",
        ),
        (lambda p, r: p.logprobs(r), "list is no packed batch"),
        (lambda p, r: p.outputs(p.pack(r), "values_T"), "load the model with another head"),
        (
            lambda p, r: ascent.Policy("tiny:llama", head="both!"),
            "head='both!', but it must be one of",
        ),
        (
            lambda p, r: ascent.Policy("tiny:llama", learning_rate=-1.0),
            r"learning_rate=-1.0, but it must be above 0",
        ),
        (
            lambda p, r: ascent.Policy(p.model.module),
            "a loaded model with no tokenizer; pass tokenizer=",
        ),
        (
            lambda p, r: ascent.Policy("tiny:llama", tokenizer=p.tokenizer),
            "tokenizer= belongs to a loaded model",
        ),
        (lambda p, r: ascent.Policy(3), "give a name, a folder, or a loaded transformers model"),
        (
            lambda p, r: ascent.Policy("tiny:llama", {"data.train": "x"}),
            r"data\.train has no effect on a policy",
        ),
        (
            lambda p, r: ascent.Policy("tiny:llama", {"update": {"epochs": 2}}),
            r"update\.epochs has no effect on a",
        ),
        (
            lambda p, r: ascent.Policy("tiny:llama", {"update.lr": 1}),
            r"update\.lr is not a key; did you mean",
        ),
    ],
)
def test_wrong_calls(
    call: Any, words: str, policy: ascent.Policy, rollouts: list[ascent.Rollout]
) -> None:
    with pytest.raises(ValueError, match=words):
        call(policy, rollouts)


def test_a_second_update_without_old_logprobs_is_refused() -> None:
    """On a GPU the trainer's log-probs are not the sampler's; the ratio of a later update would silently be 1."""
    policy = ascent.Policy("tiny:llama", max_new_tokens=4)
    batch = ascent.add_advantages(policy.pack(policy.sample(["a"], n=2), [1.0, 0.0]))
    assert batch is not None
    del batch["old_logprobs_T"]
    policy.step(batch, "grpo", kl=False)
    for call in (
        lambda: policy.step(batch, "grpo", kl=False),
        lambda: next(policy.minibatches(batch, 2)),
    ):
        with pytest.raises(
            ValueError, match=r"sampled at step 0 and the policy is at step 1.*old_logprobs_T"
        ):
            call()


def test_a_saved_policy_is_loaded_again_and_an_adapter_names_its_base(tmp_path: Path) -> None:
    policy = ascent.Policy("tiny:llama", max_new_tokens=4, seed=3)
    policy.save(tmp_path / "tiny")
    again = ascent.Policy(tmp_path / "tiny", max_new_tokens=4, seed=3)
    assert again.sample(["a"], n=2) == policy.sample(["a"], n=2)
    with pytest.raises(ValueError, match="save the base model in a folder first"):
        ascent.Policy("tiny:llama", lora=2).save(tmp_path / "adapter")
    module, tokenizer = policy.model.module, policy.tokenizer
    loaded = ascent.Policy(module, tokenizer=tokenizer, max_new_tokens=4, seed=3)
    assert loaded.model.module is not module
    assert loaded.sample(["a"], n=2) == ascent.Policy(
        "tiny:llama", max_new_tokens=4, seed=3
    ).sample(["a"], n=2)
    tuned = ascent.Policy(tmp_path / "tiny", lora=2, learning_rate=0.1, max_new_tokens=4)
    batch = tuned.pack(ascent.load_data("sort_digits:4", "examples"))
    tuned.step(batch, "sft")
    tuned.save(tmp_path / "adapter")
    merged = ascent.Policy(tmp_path / "adapter")
    torch.testing.assert_close(merged.logprobs(batch), tuned.logprobs(batch))


@pytest.mark.parametrize("lora", [None, 2])
def test_a_saved_policy_stops_where_its_answers_end(lora: int | None, tmp_path: Path) -> None:
    base = tiny.create(
        tmp_path / "base", layers=1, special=("<|start|>", "<|end|>"), chat_template=chat.CHATML
    )
    policy = ascent.Policy(base, lora=lora)
    ends = sorted(policy.tokenizer.convert_tokens_to_ids(["<eos>", "<|end|>"]))
    policy.pack(ascent.load_data("sort_digits:4", "examples"))
    policy.checkpoint(tmp_path / "loop", 1)
    policy.restore(tmp_path / "loop")
    policy.save(tmp_path / "own")
    assert load(tmp_path / "own").module.generation_config.eos_token_id == ends
