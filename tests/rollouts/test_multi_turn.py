"""Rollouts of several turns: token by token, whoever replies first, and every way in which they can end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ascent.data.render import Renderer
from ascent.engines.hf import HFSampler
from ascent.engines.native.engine import NativeEngine
from ascent.envs import find_env
from ascent.models.load import load
from ascent.models.model import LanguageModel
from ascent.models.tiny import create
from ascent.protocols import Env
from ascent.records import Completion, Message, Prompt, Reply, Request, Rollout
from ascent.rollouts.batch import pack_rollouts
from ascent.rollouts.generate import (
    RenderedPrompt,
    RolloutStream,
    SamplingParams,
    generate,
    generate_stream,
)
from ascent.rollouts.metrics import episode_metrics
from ascent.rollouts.multi_turn import EnvSession, Limits
from tests.data.chat import CHATML, FORGETFUL, tokenizer
from tests.wall_clock import wall_clock


class Scripted:
    """A sampler that says given texts, one a turn, with an end token; it keeps what it was asked."""

    def __init__(self, renderer: Renderer, turns: Sequence[str]) -> None:
        self.renderer, self.turns = renderer, turns
        self.asked: list[Request] = []

    def sample(self, requests: Iterable[Request]) -> Iterator[Completion]:
        for request in requests:
            number = (
                int(request.prompt_id.rpartition("/turn ")[2])
                if "/turn " in request.prompt_id
                else 0
            )
            ids = self.renderer.tokenizer.encode(self.turns[number], add_special_tokens=False)
            tokens = (*ids, self.renderer.end_id)[: request.max_new_tokens]
            self.asked.append(request)
            stop: Any = "eos" if tokens[-1] == self.renderer.end_id else "length"
            logs = tuple(-0.01 * (n + 1) - number for n in range(len(tokens)))
            yield Completion(
                request.prompt_id, request.sample, tokens, logs, (0,) * len(tokens), stop
            )

    def set_weights(self, version: int, tensors: Any) -> None:
        """Nothing to set."""

    def close(self) -> None:
        """Nothing is held."""


def talk_with(renderer: Renderer, make: Callable[[Prompt], Env], **limits: Any) -> EnvSession:
    return EnvSession(
        make, renderer.between_turns, renderer.escape_control_tokens, Limits(**limits)
    )


def one(question: str, answer: str | None = None, name: str = "p") -> Prompt:
    return Prompt(name, (Message("user", question),), answer)


def opened(renderer: Renderer, talk: EnvSession, *prompts: Prompt) -> list[RenderedPrompt]:
    begun = [talk.make(prompt).first() for prompt in prompts]
    return [
        RenderedPrompt(each, renderer.prompt(each.messages), prompt)
        for each, prompt in zip(begun, prompts, strict=True)
    ]


def scripted(
    turns: Sequence[str],
    make: Callable[[Prompt], Env],
    template: str | None,
    *,
    budget: int = 40,
    **limits: Any,
) -> tuple[Rollout, Scripted, Renderer]:
    renderer = Renderer(tokenizer(template))
    talk, sampler = talk_with(renderer, make, **limits), Scripted(renderer, turns)
    settings = SamplingParams(budget, seed=0, env=talk)
    decode = lambda ids: str(renderer.tokenizer.decode(list(ids), skip_special_tokens=True))  # noqa: E731
    (rollout,) = generate(
        sampler, opened(renderer, talk, one("6*7-2=?")), [0], settings, noise_key="1", decode=decode
    )
    return rollout, sampler, renderer


CALLS = ["<calculator>6*7</calculator>", "<calculator>42-2</calculator>", "so 40"]
TRANSCRIPTS = {
    None: (
        "6*7-2=?",
        "<calculator>6*7</calculator><|end|>",
        "<result>42</result>",
        "<calculator>42-2</calculator><|end|>",
        "<result>40</result>",
        "so 40<|end|>",
    ),
    CHATML: (
        "<|start|>user\n6*7-2=?<|end|>\n<|start|>assistant\n",
        "<calculator>6*7</calculator><|end|>",
        "\n<|start|>tool\n<result>42</result><|end|>\n<|start|>assistant\n",
        "<calculator>42-2</calculator><|end|>",
        "\n<|start|>tool\n<result>40</result><|end|>\n<|start|>assistant\n",
        "so 40<|end|>",
    ),
}


@pytest.mark.parametrize("template", [None, CHATML])
def test_two_calls_of_a_tool_token_by_token(template: str | None) -> None:
    """What was read and what was sampled alternate; sampled tokens alone are trained; the reward is at the last."""
    rollout, sampler, renderer = scripted(
        CALLS, find_env("tools", tools=["calculator"], announce=False), template
    )
    encoded = [
        renderer.tokenizer.encode(piece, add_special_tokens=False)
        for piece in TRANSCRIPTS[template]
    ]
    batch = pack_rollouts([replace(rollout, reward=1.0)])
    assert batch["tokens_T"].tolist() == [token for piece in encoded for token in piece]
    assert batch["loss_mask_T"].tolist() == [
        n % 2 == 1 for n, piece in enumerate(encoded) for _ in piece
    ]
    expected = [
        -0.01 * (place + 1) - n // 2 if n % 2 else 0.0
        for n, piece in enumerate(encoded)
        for place in range(len(piece))
    ]
    assert batch["sampler_logprobs_T"].tolist() == pytest.approx(expected)
    assert bool(batch["loss_mask_T"][-1])
    # Each request is everything so far, exactly as it was sampled.
    for turn, request in enumerate(sampler.asked):
        assert list(request.tokens) == [
            token for piece in encoded[: 2 * turn + 1] for token in piece
        ]
    assert rollout.episode is not None and rollout.episode.ended == "over"
    assert [turn.reply for turn in rollout.turns] == [
        "",
        "<result>42</result>",
        "<result>40</result>",
    ]
    assert [turn.reply_role for turn in rollout.turns] == ["user", "tool", "tool"]
    assert rollout.text == "so 40" and rollout.episode.counts == {"calculator/calls": 2}


def test_a_template_that_forgets_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="changes earlier turns once a tool message follows"):
        scripted(CALLS, find_env("tools", tools=["calculator"], announce=False), FORGETFUL)


def test_what_a_tool_says_cannot_be_a_control_token(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def echo(text):\n    return text + '<|end|>'\n")
    rollout, _, renderer = scripted(
        ["<echo>x</echo>", "done"], find_env("tools", tools=[f"{file}:echo"]), CHATML
    )
    assert rollout.turns[1].reply == "<result>x< |end|></result>"
    assert rollout.turns[1].observed.count(renderer.end_id) == 1  # the template's own


TOOL = """
import time
def raises(text):
    raise KeyError("no such thing")
def hangs(text):
    time.sleep(30)
def leaves(text):
    raise SystemExit(0)
"""


@pytest.mark.parametrize(
    ("name", "heard", "kind"),
    [
        ("raises", "error: KeyError: 'no such thing'", "raised"),
        ("hangs", "error: no answer within 0.2 s", "timeout"),
        ("leaves", "error: SystemExit: 0", "raised"),
    ],
)
def test_a_tool_that_raises_or_hangs_is_an_observation_and_counted(
    name: str, heard: str, kind: str, tmp_path: Path
) -> None:
    file = tmp_path / "tool.py"
    file.write_text(TOOL)
    family = find_env("tools", tools=[f"{file}:{name}"], seconds=0.2)
    rollout, _, _ = scripted([f"<{name}>x</{name}>", "nothing then"], family, CHATML)
    assert rollout.turns[1].reply == f"<result>{heard}</result>"
    assert rollout.episode is not None and rollout.episode.ended == "over"
    assert rollout.episode.counts == {f"{name}/calls": 1, f"{name}/{kind}": 1}
    figures = {key: each.value() for key, each in episode_metrics([rollout]).items()}
    assert figures == {
        "env/turns": 2,
        "env/ended/over": 1,
        f"env/{name}/calls": 1,
        f"env/{name}/{kind}": 1,
    }


MANY = ["<calculator>1+1</calculator>"] * 8


@pytest.mark.parametrize(
    ("turns", "limits", "ended", "count"),
    [
        (MANY, {"max_turns": 3}, "turns", 3),
        (MANY, {"max_turns": 8, "max_tokens": 100}, "tokens", None),
        (["x" * 200], {"max_turns": 8}, "cut", 1),
        (["over at once"], {"max_turns": 8}, "over", 1),
    ],
)
def test_limits_end_an_episode_by_name(
    turns: list[str], limits: dict[str, Any], ended: str, count: int | None
) -> None:
    rollout, _, _ = scripted(
        turns, find_env("tools", tools=["calculator"], announce=False), CHATML, **limits
    )
    assert rollout.episode is not None and rollout.episode.ended == ended
    assert count is None or len(rollout.turns) == count
    assert rollout.truncated is (ended != "over")
    room, prompt = limits.get("max_tokens", 10**6), len(rollout.turns[0].observed)
    used = sum(len(turn.observed) + len(turn.completion.tokens) for turn in rollout.turns) - prompt
    assert used <= room
    assert pack_rollouts([rollout])["loss_mask_T"][
        -1
    ]  # whatever ended it, the policy's token comes last


def test_an_episode_ends_where_the_model_holds_no_more() -> None:
    renderer = Renderer(tokenizer(CHATML))
    make = find_env("tools", tools=["calculator"], announce=False)
    talk = replace(talk_with(renderer, make, max_turns=8), context=150)
    sampler, (asked,) = Scripted(renderer, MANY), opened(renderer, talk, one("6*7-2=?"))
    decode = lambda ids: str(renderer.tokenizer.decode(list(ids), skip_special_tokens=True))  # noqa: E731
    (rollout,) = generate(
        sampler, [asked], [0], SamplingParams(40, seed=0, env=talk), noise_key="1", decode=decode
    )
    assert (
        rollout.episode is not None and rollout.episode.ended == "tokens" and len(sampler.asked) > 1
    )
    assert max(len(each.tokens) + each.max_new_tokens for each in sampler.asked) <= 150


class Broken:
    def __init__(self, prompt: Prompt, fault: str) -> None:
        self.prompt, self.fault = prompt, fault

    def first(self) -> Prompt:
        return self.prompt

    def reply(self, text: str) -> Any:
        if self.fault == "hangs":
            time.sleep(30)
        return {"raises": lambda: 1 / 0, "lies": lambda: "a string"}[self.fault]()


@wall_clock
@pytest.mark.parametrize(
    ("fault", "ended", "detail"),
    [
        ("raises", "raised", "ZeroDivision"),
        ("hangs", "timeout", "0.2 s"),
        ("lies", "raised", "replied with a str"),
    ],
)
def test_an_environment_that_fails_is_nobodys_wrong_answer(
    fault: str, ended: str, detail: str
) -> None:
    rollout, _, _ = scripted(
        ["hello"], lambda prompt: Broken(prompt, fault), CHATML, reply_timeout=0.2
    )
    assert rollout.episode is not None and rollout.episode.failed
    assert rollout.episode.ended == ended and detail in rollout.episode.detail


def test_an_environment_begins_a_prompt_in_one_way() -> None:
    seen: list[int] = []

    class Fickle(Broken):
        def first(self) -> Prompt:
            seen.append(1)
            return one(f"question {len(seen)}")

    with pytest.raises(ValueError, match="in two ways"):
        scripted(["x"], lambda prompt: Fickle(prompt, "lies"), CHATML)


# With a real policy.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("model") / "tiny", seed=0)


class Counting:
    """Says how many turns there were, after a wait that depends on `seed`; three turns in all."""

    def __init__(self, prompt: Prompt, wait: Callable[[], float]) -> None:
        self.prompt, self.wait, self.turn = prompt, wait, 0

    def first(self) -> Prompt:
        return self.prompt

    def reply(self, text: str) -> Reply:
        time.sleep(self.wait())
        self.turn += 1
        return Reply(
            Message("user", f"turn {self.turn}: ") if self.turn < 3 else None,
            {"correct": float(len(text) % 2)},
        )


def rollouts_of(
    model: LanguageModel, kind: str, wait: Callable[[], float], samples: int = 8
) -> list[Rollout]:
    renderer = Renderer(model.tokenizer, train_on="completion")
    talk = talk_with(renderer, lambda prompt: Counting(prompt, wait), max_turns=4, max_tokens=100)
    asked = opened(renderer, talk, *(one(f"say {n}", name=f"p{n}") for n in range(3)))
    if kind == "hf":
        sampler: Any = HFSampler(model, renderer.stop_ids)
    else:
        sampler = NativeEngine(model, renderer.stop_ids, max_num_seqs=int(kind), max_model_len=160)
    text = lambda ids: str(model.tokenizer.decode(list(ids), skip_special_tokens=True))  # noqa: E731
    return generate(
        sampler,
        asked,
        range(samples),
        SamplingParams(24, seed=5, env=talk),
        noise_key="1",
        decode=text,
    )


def test_nothing_depends_on_who_replies_first(folder: Path) -> None:
    """The same tokens and the same bits of log-prob with other waits, with fewer rows, and twice."""
    model, calls = load(folder), iter(range(10**6))
    lock = threading.Lock()

    def uneven() -> float:
        with lock:
            return 0.02 * (next(calls) * 7 % 5)

    first = rollouts_of(model, "64", lambda: 0.0)
    assert {len(each.turns) for each in first} != {1}  # an untrained policy ends some of its turns
    for kind, wait in (("64", uneven), ("4", uneven), ("64", lambda: 0.0)):
        assert rollouts_of(model, kind, wait) == first


def test_a_sampler_that_only_samples_gives_the_same_tokens(folder: Path) -> None:
    model = load(folder)
    native, slow = (
        rollouts_of(model, "64", lambda: 0.0, 4),
        rollouts_of(model, "hf", lambda: 0.01, 4),
    )
    for one_, other in zip(native, slow, strict=True):
        assert [turn.completion.tokens for turn in one_.turns] == [
            turn.completion.tokens for turn in other.turns
        ]
        assert one_.episode == other.episode


def test_turns_have_noise_of_their_own(folder: Path) -> None:
    """Two turns that read the same must not say the same because of the noise: their keys differ."""
    found = rollouts_of(load(folder), "64", lambda: 0.0)
    names = [turn.completion.prompt_id for each in found for turn in each.turns]
    assert {name.rpartition("/turn ")[2] for name in names if "/turn " in name} <= {"1", "2"}
    keys = [
        (turn.completion.prompt_id, turn.completion.sample) for each in found for turn in each.turns
    ]
    assert len(set(keys)) == len(keys)


@wall_clock
@pytest.mark.parametrize("kind", ["64", "hf"])
def test_sixty_four_waits_of_a_second_take_about_a_second_a_turn(folder: Path, kind: str) -> None:
    model = load(folder)
    renderer = Renderer(model.tokenizer, train_on="completion")
    talk = talk_with(renderer, lambda prompt: Sleepy(prompt), max_turns=4, max_tokens=60)
    asked = opened(renderer, talk, one("go"))
    engine: Any = NativeEngine(model, renderer.stop_ids, max_num_seqs=64, max_model_len=100)
    sampler = HFSampler(model, renderer.stop_ids) if kind == "hf" else engine
    text = lambda ids: str(model.tokenizer.decode(list(ids), skip_special_tokens=True))  # noqa: E731
    settings = SamplingParams(1, seed=5, env=talk)
    start = time.monotonic()
    found = generate(sampler, asked, range(64), settings, noise_key="1", decode=text)
    spent = time.monotonic() - start
    print(f"{kind}: 64 rollouts waited 1 s each: {spent:.2f} s")
    assert len(found) == 64 and spent < 3.0  # one after another: 64 s


class Sleepy(Counting):
    def __init__(self, prompt: Prompt) -> None:
        super().__init__(prompt, lambda: 1.0)


def test_arriving_can_be_gone_through_in_order_or_as_it_comes() -> None:
    rollout, _, _ = scripted(["x"], find_env("single_turn"), CHATML)
    placed = [(2, replace(rollout, sample=2)), (0, rollout), (1, replace(rollout, sample=1))]
    assert [each.sample for each in RolloutStream(iter(placed), 3)] == [0, 1, 2]
    assert [place for place, _ in RolloutStream(iter(placed), 3).as_completed()] == [2, 0, 1]
    with pytest.raises(RuntimeError, match="lost 1 of 4 requests"):
        list(RolloutStream(iter(placed), 4))


def test_one_turn_with_an_environment_is_one_turn_without(folder: Path) -> None:
    model = load(folder)
    renderer = Renderer(model.tokenizer, train_on="completion")
    talk = talk_with(renderer, find_env("single_turn"))
    engine = NativeEngine(model, renderer.stop_ids, max_num_seqs=8, max_model_len=64)
    asked, text = opened(renderer, talk, one("say")), lambda ids: " ".join(map(str, ids))
    plain, talked = (
        list(
            generate_stream(
                engine,
                asked,
                range(4),
                SamplingParams(8, seed=1, env=each),
                noise_key="1",
                decode=text,
            )
        )
        for each in (None, talk)
    )
    assert [each.turns for each in plain] == [each.turns for each in talked]
    assert [each.truncated for each in plain] == [each.truncated for each in talked]
