"""Requests that are interrupted and continued: the same tokens, and with new weights each token of its own version."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ascent.engines.native.interruptible import InterruptibleEngine
from ascent.models.load import load
from ascent.models.model import LanguageModel
from ascent.models.tiny import create
from ascent.records import Completion, Request
from tests.engines.native.test_engine import ENDS, Done, ragged, run, trained


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("models") / "llama", family="llama", seed=0)


def engine_of(model: LanguageModel, max_num_seqs: int = 8) -> InterruptibleEngine:
    return InterruptibleEngine(
        model, ENDS, max_num_seqs=max_num_seqs, max_model_len=128, steps_per_sync=3
    )


def key(each: Request | Completion) -> tuple[str, int]:
    return each.prompt_id, each.sample


def interrupted_every(
    engine: InterruptibleEngine, requests: list[Request], steps: int
) -> tuple[Done, int]:
    """All completions, where every request is interrupted after so many steps; how many went on with tokens."""
    done: Done = {}
    begun: Done = {}
    continued = 0
    while len(done) < len(requests):
        for each in requests:
            if key(each) not in done:
                engine.add(each, begun.get(key(each)))
        for _ in range(steps):
            done |= {key(each): each for each in engine.step()}
        begun = {key(each): each for each in engine.interrupt()}
        assert engine.stats().used_blocks == 0
        assert begun.keys() | done.keys() == {key(each) for each in requests}
        assert all(each.stop == "abort" for each in begun.values())
        continued += sum(bool(each.tokens) for each in begun.values())
    return done, continued


@pytest.mark.parametrize("changes", [{}, {"top_p": 0.9}, {"temperature": 0.7}])
@pytest.mark.parametrize(("rows", "steps"), [(8, 1), (8, 3), (64, 2)])
def test_a_continued_request_gives_the_tokens_of_an_undisturbed_one(
    folder: Path, rows: int, steps: int, changes: dict[str, float]
) -> None:
    model, requests = load(folder), ragged(**changes)
    whole = run(model, requests, max_num_seqs=rows)
    done, continued = interrupted_every(engine_of(model, rows), requests, steps)
    assert continued > 5
    for name, each in done.items():
        assert (each.tokens, each.stop) == (whole[name].tokens, whole[name].stop)
        assert each.logprobs == pytest.approx(whole[name].logprobs, abs=1e-5)
        assert (each.log_mass is None) == (whole[name].log_mass is None)
        assert each.log_mass is None or each.log_mass == pytest.approx(
            whole[name].log_mass, abs=1e-5
        )


def test_after_new_weights_every_token_has_the_log_prob_of_its_version(folder: Path) -> None:
    """Keys and values of the earlier tokens are the new weights' as well, so that a training forward agrees."""
    model, other = load(folder), load(folder)
    engine, requests = engine_of(model), ragged(prompts=3, max_new_tokens=30)
    for each in requests:
        engine.add(each)
    done = engine.step() + engine.step()
    begun = {key(each): each for each in engine.interrupt()}
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.3)
    engine.set_weights(7, {})
    for each in requests:
        if key(each) in begun:
            engine.add(each, begun[key(each)])
    while len(done) < len(requests):
        done += engine.step()
    mixed = 0
    for request in requests:
        (own,) = [each for each in done if key(each) == key(request)]
        expected = {0: trained(other, request, own), 7: trained(model, request, own)}
        assert own.logprobs == pytest.approx(
            [expected[version][place] for place, version in enumerate(own.versions)], abs=1e-5
        )
        assert list(own.versions) == sorted(own.versions)
        mixed += set(own.versions) == {0, 7}
    assert mixed >= 3


def test_nothing_to_interrupt(folder: Path) -> None:
    assert engine_of(load(folder)).interrupt() == []
