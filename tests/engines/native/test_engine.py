"""The native engine against transformers' generate, the training forward, and itself in every other arrangement."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from ascent.engines.hf import HFSampler
from ascent.engines.native import cpu_step, sampling, sizing
from ascent.engines.native.engine import NativeEngine
from ascent.maths.segments import Segments
from ascent.models.load import load
from ascent.models.lora import attach
from ascent.models.model import LanguageModel
from ascent.models.paged_attention_sdpa import sdpa_decode
from ascent.models.tiny import FAMILIES, create
from ascent.records import Completion, Request

ENDS = frozenset({1})
Done = dict[tuple[str, int], Completion]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {family: create(root / family, family=family, seed=0) for family in FAMILIES}


@pytest.fixture(scope="module")
def model(folders: dict[str, Path]) -> LanguageModel:
    return load(folders["qwen2"])


def ragged(prompts: int = 6, group: int = 4, seed: int = 0, **changes: object) -> list[Request]:
    rng = random.Random(seed)
    made = []
    for n in range(prompts):
        tokens = tuple(rng.randrange(3, 250) for _ in range(rng.choice((1, 2, 7, 16, 17, 40, 70))))
        for sample in range(group):
            made.append(
                replace(Request(f"p{n}", sample, tokens, rng.randint(1, 40), seed=5), **changes)
            )  # type: ignore[arg-type]
    return made


def run(model: LanguageModel, requests: list[Request], **settings: int | None) -> Done:
    engine = NativeEngine(model, ENDS, **{"max_num_seqs": 8, "max_model_len": 128, **settings})  # type: ignore[arg-type]
    done = {(each.prompt_id, each.sample): each for each in engine.sample(requests)}
    assert engine.stats().used_blocks == 0
    assert len(done) == len(requests)
    return done


def trained(model: LanguageModel, request: Request, done: Completion) -> list[float]:
    """The training forward's log-probs of a completion."""
    tokens = torch.tensor(request.tokens + done.tokens)
    batch = {
        "tokens_T": tokens,
        "positions_T": torch.arange(tokens.numel()),
        "segments": Segments.from_lengths([tokens.numel()]),
        "loss_mask_T": torch.ones(tokens.numel(), dtype=torch.bool),
    }
    with torch.no_grad():
        logprobs_T = model.outputs(batch, frozenset({"logprobs_T"}), request.temperature)[
            "logprobs_T"
        ]
    found: list[float] = logprobs_T[len(request.tokens) :].tolist()
    return found


def generated(folder: Path, prompts: list[tuple[int, ...]], new: int) -> list[list[int]]:
    """transformers' own greedy completions, left-padded in one batch, each up to its end token."""
    stock = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    )
    width = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    seen = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    (end,) = ENDS
    out = stock.generate(
        ids,
        attention_mask=seen,
        max_new_tokens=new,
        do_sample=False,
        eos_token_id=end,
        pad_token_id=0,
    )[:, width:].tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in out]


@pytest.mark.parametrize("family", list(FAMILIES))
def test_greedy_equals_transformers_generate(folders: dict[str, Path], family: str) -> None:
    requests = ragged(prompts=16, group=1, max_new_tokens=40, greedy=True)
    done = run(load(folders[family]), requests, max_model_len=256)
    prompts = [request.tokens for request in requests]
    assert [list(done[r.prompt_id, 0].tokens) for r in requests] == generated(
        folders[family], prompts, 40
    )


@pytest.mark.usefixtures("attention")
@pytest.mark.parametrize(
    ("family", "numbers"),
    [
        ("mistral", {}),
        ("gemma2", {}),
        ("gemma3", {"layer_types": ["sliding_attention", "full_attention"]}),
        ("gpt_oss", {"initializer_range": 0.25}),  # whose sinks take weight then
    ],
)
def test_sliding_windows_are_honoured(tmp_path: Path, family: str, numbers: dict[str, Any]) -> None:
    folder = create(tmp_path / family, family=family, seed=0, sliding_window=8, **numbers)
    requests = ragged(prompts=6, group=1, max_new_tokens=32, greedy=True)
    done = run(load(folder), requests)
    prompts = [request.tokens for request in requests]
    assert [list(done[r.prompt_id, 0].tokens) for r in requests] == generated(folder, prompts, 32)


@pytest.mark.skipif(
    "ASCENT_SMOLLM2" not in os.environ, reason="ASCENT_SMOLLM2 names no SmolLM2 folder"
)
def test_greedy_equals_generate_on_smollm2() -> None:
    folder = Path(os.environ["ASCENT_SMOLLM2"])
    model = load(folder)
    rng = random.Random(0)
    text = (
        "Once upon a time a small model learned to sort numbers and to tell short stories about the sea. "
        * 4
    )
    ids: list[int] = model.tokenizer.encode(text)
    prompts = [tuple(ids[: rng.randint(4, 60)]) for _ in range(32)]
    requests = [
        Request(f"p{n}", 0, prompt, 64, seed=0, greedy=True) for n, prompt in enumerate(prompts)
    ]
    engine = NativeEngine(model, ENDS, max_num_seqs=32, max_model_len=128)
    done = {each.prompt_id: list(each.tokens) for each in engine.sample(requests)}
    assert [done[f"p{n}"] for n in range(32)] == generated(folder, prompts, 64)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_recorded_log_probs_are_the_training_forwards(
    folders: dict[str, Path], family: str
) -> None:
    model = load(folders[family])
    requests = ragged(temperature=0.8)
    done = run(model, requests)
    for request in requests:
        each = done[request.prompt_id, request.sample]
        assert each.logprobs == pytest.approx(trained(model, request, each), abs=1e-5)


def test_dropout_in_the_models_config_does_not_reach_the_samples(tmp_path: Path) -> None:
    folder = create(tmp_path / "dropout", family="phi", seed=0, resid_pdrop=0.3, embd_pdrop=0.3)
    wet, dry = load(folder, dropout=True), load(folder)
    assert wet.module.training
    assert run(wet, ragged()) == run(dry, ragged())
    assert wet.module.training  # and the learner finds the model as it left it


def test_sampled_tokens_are_the_reference_samplers(model: LanguageModel) -> None:
    requests = ragged()
    reference = {
        (each.prompt_id, each.sample): each.tokens
        for each in HFSampler(model, ENDS).sample(requests)
    }
    assert {key: each.tokens for key, each in run(model, requests).items()} == reference


def without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cpu_step, sampling):
        monkeypatch.setattr(module, "library", lambda: None)


@pytest.fixture(params=["compiled", "sdpa"])
def attention(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kernels of attention on a CPU."""
    if request.param == "sdpa":
        without_a_compiler(monkeypatch)
    else:
        assert cpu_step.library() is not None


@pytest.mark.usefixtures("attention")
class TestCompositionDoesNotMatter:
    """The same request: the same tokens and the same bits of log-prob, whatever runs beside it."""

    def test_alone(self, model: LanguageModel) -> None:
        together = run(model, ragged(), max_num_seqs=64)
        for request in ragged()[::3]:
            key = (request.prompt_id, request.sample)
            assert run(model, [request], max_num_seqs=1)[key] == together[key]

    def test_in_a_full_batch_and_in_any_order(self, model: LanguageModel) -> None:
        requests = ragged(prompts=16, group=4)
        together = run(model, requests, max_num_seqs=64)
        for seed in range(2):
            shuffled = random.Random(seed).sample(requests, len(requests))
            assert run(model, shuffled, max_num_seqs=64) == together
        assert run(model, requests[::-1], max_num_seqs=5) == together
        assert run(model, requests, max_num_seqs=None) == together

    @pytest.mark.parametrize("block_size", [1, 3, 16, 64, 128])
    def test_with_other_block_sizes(self, model: LanguageModel, block_size: int) -> None:
        assert run(model, ragged(), block_size=block_size) == run(model, ragged(), block_size=8)

    def test_with_prompts_that_take_another_forward(self, model: LanguageModel) -> None:
        """Prompts of up to 64 tokens, of up to 256, and longer ones each have a forward of their own."""
        rng = random.Random(0)
        lengths = (1, 63, 64, 65, 255, 256, 257, 400)
        prompts = [tuple(rng.randrange(3, 250) for _ in range(length)) for length in lengths]
        requests = [Request(f"p{n}", 0, prompt, 12, seed=0) for n, prompt in enumerate(prompts)]
        together = run(model, requests, max_model_len=512)
        for request in requests:
            alone = run(model, [request], max_model_len=512)[request.prompt_id, 0]
            assert alone == together[request.prompt_id, 0]
            assert alone.logprobs == pytest.approx(trained(model, request, alone), abs=1e-5)

    def test_when_the_host_looks_less_often(self, model: LanguageModel) -> None:
        assert run(model, ragged(), steps_per_sync=5) == run(model, ragged())

    def test_when_it_looks_more_often_for_a_while(self, model: LanguageModel) -> None:
        """As a server does for streams, also before the first step."""
        engine = NativeEngine(model, ENDS, max_num_seqs=8, max_model_len=128)
        usual = engine.steps_per_sync
        for steps in (2, usual):
            engine.steps_per_sync = steps
            found = {(each.prompt_id, each.sample): each for each in engine.sample(ragged())}
            assert found == run(model, ragged())

    def test_after_a_restart(self, model: LanguageModel, folders: dict[str, Path]) -> None:
        assert run(load(folders["qwen2"]), ragged()) == run(model, ragged())

    def test_under_forced_preemption(self, model: LanguageModel) -> None:
        requests = ragged(prompts=8)
        free = run(model, requests, max_num_seqs=16, block_size=8)
        engine = NativeEngine(
            model, ENDS, max_num_seqs=16, block_size=8, num_blocks=16, max_model_len=128
        )
        tight = {(each.prompt_id, each.sample): each for each in engine.sample(requests)}
        assert engine.stats().preemptions > 3
        assert {key: each.tokens for key, each in tight.items()} == {
            key: each.tokens for key, each in free.items()
        }
        for key, each in tight.items():
            assert each.logprobs == pytest.approx(free[key].logprobs, abs=1e-5)


def test_a_weight_update_is_seen_by_the_very_next_token(folders: dict[str, Path]) -> None:
    model = load(folders["llama"])
    engine = NativeEngine(model, ENDS, max_num_seqs=8, max_model_len=128, steps_per_sync=1)
    request = Request("p", 0, (5, 6, 7), 12, seed=0, greedy=True)
    engine.add(request)
    for _ in range(3):
        assert engine.step() == []
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(-1.0)
    engine.set_weights(7, {})
    while not (done := engine.step()):
        pass
    (completion,) = done
    # The next token is read by the new weights over the keys and values that the old ones stored: written out by hand.
    before = sum(version == 0 for version in completion.versions)
    assert completion.versions == (0,) * before + (7,) * (12 - before)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(-1.0)
    old = run(model, [request])["p", 0]
    assert completion.tokens[:before] == old.tokens[:before]
    assert completion.tokens[before:] != old.tokens[before:]
    assert completion.logprobs[before] != old.logprobs[before]


def test_the_next_call_after_an_update_equals_a_fresh_engine(folders: dict[str, Path]) -> None:
    model = load(folders["llama"])
    engine = NativeEngine(model, ENDS, max_num_seqs=8, max_model_len=128)
    before = {each.sample: each for each in engine.sample(ragged(prompts=1))}
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(
                torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)) * 0.05
            )
    after = {each.sample: each for each in engine.sample(ragged(prompts=1))}
    fresh = {
        each.sample: each
        for each in NativeEngine(model, ENDS, max_model_len=128).sample(ragged(prompts=1))
    }
    assert after == fresh
    assert after != before


def test_a_prompt_that_came_along_is_computed_anew_after_an_update(
    folders: dict[str, Path],
) -> None:
    """Two prompts on one row: the second is prefilled with the first, but starts after the weights have changed."""
    model = load(folders["llama"])
    first, second = (
        Request(name, 0, (5, 6, token), 3, seed=0) for name, token in (("a", 7), ("b", 8))
    )
    engine = NativeEngine(model, frozenset({-1}), max_num_seqs=1, max_model_len=64)
    engine.add(first)
    engine.add(second)
    assert [each.prompt_id for each in engine.step()] == ["a"]
    assert engine.stats().prefill_tokens == 6
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.mul_(1.5)
    engine.set_weights(1, {})
    (after,) = engine.step()
    assert after.versions == (1, 1, 1)
    fresh = NativeEngine(model, frozenset({-1}), max_num_seqs=1, max_model_len=64)
    (expected,) = fresh.sample([second])
    assert (after.tokens, after.logprobs) == (expected.tokens, expected.logprobs)
    assert engine.stats().used_blocks == 0


@pytest.mark.parametrize("quantize", [None, "nf4"])
def test_lora_is_sampled_in_place(folders: dict[str, Path], quantize: str | None) -> None:
    if quantize is not None:
        pytest.importorskip("bitsandbytes")
    bare = load(folders["llama"], quantize=quantize)
    adapted = attach(load(folders["llama"], quantize=quantize), rank=4, seed=0)
    with torch.no_grad():
        for weight in adapted.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) * 0.3)
    requests = ragged(prompts=3)
    done = run(adapted, requests)
    assert done != run(bare, requests)
    for request in requests:
        each = done[request.prompt_id, request.sample]
        assert each.logprobs == pytest.approx(trained(adapted, request, each), abs=1e-5)


def test_other_devices_are_refused(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LanguageModel, "device", property(lambda self: torch.device("mps")))
    with pytest.raises(ValueError, match="runs on a CPU or on CUDA, not on mps"):
        NativeEngine(model, ENDS)


def test_a_groups_prompt_is_computed_once(model: LanguageModel) -> None:
    engine = NativeEngine(model, ENDS, max_num_seqs=8, block_size=4, max_model_len=128)
    list(engine.sample([Request("p", n, tuple(range(3, 40)), 5, seed=0) for n in range(8)]))
    assert engine.stats().prefill_tokens == 37
    assert engine.stats().peak_shared_blocks == 9


def test_without_a_compiler_the_tokens_are_the_same(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, contexts = run(model, ragged()), []
    without_a_compiler(monkeypatch)
    monkeypatch.setattr(
        cpu_step, "sdpa_decode", lambda *args: contexts.append(sdpa_decode(*args)) or contexts[-1]
    )
    other = run(model, ragged())
    assert contexts
    for key, each in done.items():
        assert each.tokens == other[key].tokens
        assert each.logprobs == pytest.approx(other[key].logprobs, abs=1e-5)


def test_larger_budgets_start_first_so_that_none_runs_on_alone(model: LanguageModel) -> None:
    """16 short ones before a long one on 4 rows: in the order given, the long one would take 40 more steps alone."""
    asked = [Request(f"p{n}", 0, (5, 6, 7 + n), 10 if n < 16 else 40, seed=0) for n in range(17)]
    engine = NativeEngine(model, frozenset({-1}), max_num_seqs=4, max_model_len=64)
    assert len(list(engine.sample(asked))) == 17
    assert (
        engine.stats().useful_frac > 0.9
    )  # computed for nothing, beside short ones that fill four rows


def test_samples_of_a_group_differ_and_repeat(model: LanguageModel) -> None:
    requests = [Request("p", n, (5, 6, 7), 20, seed=0) for n in range(16)]
    done = run(model, requests)
    assert len({each.tokens for each in done.values()}) == 16
    assert run(model, requests) == done


class TestStops:
    def test_end_tokens_and_budgets(self, model: LanguageModel) -> None:
        everything = frozenset(range(8))
        requests = ragged(max_new_tokens=30)
        done = list(NativeEngine(model, everything, max_model_len=128).sample(requests))
        assert {each.stop for each in done} == {"eos", "length"}
        for each in done:
            assert (each.tokens[-1] in everything) == (each.stop == "eos")
            assert not everything.intersection(each.tokens[:-1])
            assert (len(each.tokens) == 30) or each.stop == "eos"

    def test_a_requests_own_stop_ids(self, model: LanguageModel) -> None:
        free = run(model, [Request("p", 0, (5, 6), 30, seed=0)])["p", 0]
        own = free.tokens[7]
        cut = run(model, [Request("p", 0, (5, 6), 30, seed=0, stop_ids=(own,))])["p", 0]
        assert cut.stop == "stop"
        assert cut.tokens == free.tokens[: free.tokens.index(own) + 1]

    @pytest.mark.parametrize("steps", [1, 7])
    def test_stop_texts_end_at_the_token_that_completes_them(
        self, model: LanguageModel, steps: int
    ) -> None:
        free = run(model, [Request("p", 0, (5, 6), 40, seed=0)])["p", 0]
        text = str(model.tokenizer.decode(list(free.tokens[10:13])))
        cut = run(model, [Request("p", 0, (5, 6), 40, seed=0, stop=(text,))], steps_per_sync=steps)[
            "p", 0
        ]
        assert cut.stop == "stop"
        assert cut.tokens == free.tokens[: len(cut.tokens)]
        assert text in str(model.tokenizer.decode(list(cut.tokens)))
        assert text not in str(model.tokenizer.decode(list(cut.tokens[:-1])))

    def test_a_text_that_never_comes_changes_nothing(self, model: LanguageModel) -> None:
        free = run(model, [Request("p", 0, (5, 6), 40, seed=0)])
        assert run(model, [Request("p", 0, (5, 6), 40, seed=0, stop=("never comes",))]) == free

    def test_cut_distributions_carry_their_mass(self, model: LanguageModel) -> None:
        done = run(model, ragged(top_p=0.5))
        assert all(each.log_mass is not None and max(each.log_mass) < 0 for each in done.values())
        assert all(each.log_mass is None for each in run(model, ragged()).values())


class TestBadInput:
    def test_each_is_refused_by_name_and_the_others_go_on(self, model: LanguageModel) -> None:
        engine = NativeEngine(
            model, ENDS, max_num_seqs=4, block_size=8, num_blocks=9, max_model_len=100
        )
        engine.add(Request("good", 0, (5, 6), 10, seed=0))
        bad = {
            "a sequence holds 100": Request("long", 0, tuple(range(3, 103)), 10, seed=0),
            "the KV cache has 8": Request("large", 0, tuple(range(3, 63)), 30, seed=0),
            "token 9999 in a vocabulary": Request("strange", 0, (9999,), 10, seed=0),
            "at most 8 are supported": Request(
                "stops", 0, (5,), 10, seed=0, stop_ids=tuple(range(10, 20))
            ),
            "is running already": Request("good", 0, (5, 6), 10, seed=0),
        }
        for message, request in bad.items():
            with pytest.raises(ValueError, match=message):
                engine.add(request)
        done: list[Completion] = []
        while not done:
            done += engine.step()
        assert done[0] == run(model, [Request("good", 0, (5, 6), 10, seed=0)])["good", 0]

    def test_a_bad_request_in_a_call_stops_it_before_anything_runs(
        self, model: LanguageModel
    ) -> None:
        engine = NativeEngine(model, ENDS, max_model_len=64)
        with pytest.raises(ValueError, match="a sequence holds 64"):
            list(
                engine.sample(
                    [
                        Request("p", 0, (5,), 10, seed=0),
                        Request("q", 0, tuple(range(3, 80)), 5, seed=0),
                    ]
                )
            )
        assert engine.stats().tokens == 0
        assert len(list(engine.sample([Request("p", 0, (5,), 10, seed=0)]))) == 1

    def test_settings(self, model: LanguageModel, folders: dict[str, Path]) -> None:
        for settings, message in (
            ({"max_num_seqs": -1}, "max_num_seqs=-1"),
            ({"max_num_seqs": 0}, "max_num_seqs=0"),
            ({"steps_per_sync": 0}, "steps_per_sync=0"),
            ({"memory_fraction": 1.5}, r"memory_fraction=1\.5"),
            ({"num_blocks": 1}, "at least 2 blocks"),
        ):
            with pytest.raises(ValueError, match=message):
                NativeEngine(model, ENDS, **settings)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="without stop ids"):
            NativeEngine(model, ())
        with pytest.raises(ValueError, match="no token head"):
            NativeEngine(load(folders["llama"], head="scalar"), ENDS)

    def test_an_abandoned_call_leaves_nothing_behind(self, model: LanguageModel) -> None:
        engine = NativeEngine(model, ENDS, max_num_seqs=4, max_model_len=128)
        calls = engine.sample(ragged())
        next(calls)
        calls.close()  # type: ignore[attr-defined]
        assert engine.stats().used_blocks == 0
        assert len(list(engine.sample(ragged()))) == len(ragged())


def test_a_small_model_runs_many_rows_where_they_take_little_memory(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = NativeEngine(model, ENDS, max_model_len=128)
    assert few.max_num_seqs == 256
    list(few.sample(ragged()))
    monkeypatch.setattr(sizing, "SMALL_MODEL_BYTES", few.stats().kv_cache_bytes // 2)
    assert NativeEngine(model, ENDS, max_model_len=128).max_num_seqs == 64


@pytest.mark.parametrize(
    ("token_bytes", "gigabytes", "expected"),
    [
        (28 * 2 * 128 * 2 * 2, 150, 1024),  # Qwen2.5-1.5B, 712 tokens: 20.9 GB of 37.5
        (28 * 4 * 128 * 2 * 2, 150, 512),  # 7B: 41.8 GB
        (24 * 2 * 64 * 2 * 2, 24, 512),  # 0.5B: 9.0 GB of 6
        (30 * 3 * 64 * 2 * 2, 80, 1024),  # SmolLM2-135M: 16.8 GB of 20
    ],
)
def test_a_gpu_runs_more_rows_where_their_kv_cache_fits(
    token_bytes: int, gigabytes: int, expected: int
) -> None:
    assert sizing.cuda_max_num_seqs(712 * token_bytes, gigabytes * 10**9) == expected


def test_statistics(model: LanguageModel) -> None:
    engine = NativeEngine(model, ENDS, max_num_seqs=64, max_model_len=128)
    done = list(
        engine.sample([Request("p", n, tuple(range(3, 35)), 10, seed=0) for n in range(64)])
    )
    stats = engine.stats()
    assert stats.requests == 64
    assert stats.tokens == sum(len(each.tokens) for each in done)
    assert stats.tokens > 0 and stats.seconds > 0
    assert 0.9 < stats.useful_frac <= 1
