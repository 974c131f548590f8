"""Limits of length, truncation, and what a record becomes."""

from __future__ import annotations

import pytest

from ascent.data.errors import Report, RowError
from ascent.data.load import from_records
from ascent.data.prepare import Limits, fit_prompt, prepare, prepare_prompts, render_record
from ascent.data.render import Renderer
from ascent.records import Example, Message, Pair, Prompt, Ranking, StepExample, UnpairedExample
from ascent.tasks import TASKS
from tests.data import chat

RENDERER = Renderer(chat.tokenizer())
PROMPT = Prompt("p", (Message("user", "first\nsecond\nthird"),))
A, B = (Message("assistant", "1 2"),), (Message("assistant", "2 1 0"),)
ROOM = Limits()


def test_a_pair_is_two_sequences_with_one_prompt() -> None:
    item = render_record(Pair(PROMPT, A, B, margin=0.5), RENDERER, ROOM)
    won, lost = item.sequences
    assert (item.kind, item.margin, item.tokens) == ("pairs", 0.5, len(won) + len(lost))
    assert won.tokens[: won.prompt_length].tolist() == lost.tokens[: lost.prompt_length].tolist()
    assert RENDERER.tokenizer.decode(lost.tokens[lost.loss_mask].tolist()) == "2 1 0<|end|>"


def test_rankings_thumbs_and_examples() -> None:
    assert len(render_record(Ranking(PROMPT, (A, B)), RENDERER, ROOM).sequences) == 2
    assert render_record(UnpairedExample(PROMPT, A, False), RENDERER, ROOM).good is False
    assert render_record(Example("e", (*PROMPT.messages, *A)), RENDERER, ROOM).kind == "examples"
    with pytest.raises(ValueError, match="a prompt alone"):
        render_record(PROMPT, RENDERER, ROOM)


def test_a_gold_answer_comes_third_where_one_is_wanted() -> None:
    pair = Pair(Prompt("p", PROMPT.messages, "3 2 1"), A, B)
    assert len(render_record(pair, RENDERER, ROOM).sequences) == 2
    gold = render_record(pair, RENDERER, ROOM, gold=True).sequences[2]
    assert RENDERER.tokenizer.decode(gold.tokens[gold.loss_mask].tolist()) == "3 2 1<|end|>"
    with pytest.raises(
        RowError, match="no gold answer, which this algorithm needs with every pair; add a column"
    ):
        render_record(Pair(PROMPT, A, B), RENDERER, ROOM, gold=True)


def test_judged_steps_are_one_sequence() -> None:
    item = render_record(StepExample(PROMPT, ("1 2", "3"), (1.0, None)), RENDERER, ROOM)
    assert (item.kind, len(item.sequences), len(item.step_ends), item.step_labels) == (
        "steps",
        1,
        2,
        (1.0, None),
    )


def test_too_long_is_refused_at_exactly_the_limit() -> None:
    longest = len(RENDERER.answer(PROMPT.messages, B))
    render_record(Pair(PROMPT, A, B), RENDERER, Limits(longest, 100))
    with pytest.raises(RowError, match=f"{longest} tokens, but at most {longest - 1}") as caught:
        render_record(Pair(PROMPT, A, B), RENDERER, Limits(longest - 1, 100))
    assert caught.value.kind == "long"


def test_long_prompts_are_refused_or_lose_paragraphs() -> None:
    length = len(RENDERER.prompt(PROMPT.messages))
    report = Report("collect")
    assert fit_prompt(PROMPT, RENDERER, Limits(99, length), report) is PROMPT
    with pytest.raises(RowError, match=f"a prompt of {length} tokens, but at most {length - 1}"):
        fit_prompt(PROMPT, RENDERER, Limits(99, length - 1), report)
    limits = Limits(99, length - 1, prompt_overflow="truncate")
    for record in (PROMPT, Pair(PROMPT, A, B), Example("e", (*PROMPT.messages, *A))):
        cut = fit_prompt(record, RENDERER, limits, report)
        messages = cut.messages if isinstance(cut, Prompt | Example) else cut.prompt.messages
        assert messages[0].content == "first\nsecond"
    assert report.notes == {"prompts truncated at a paragraph": 3}
    tight = len(RENDERER.prompt((Message("user", "first"),))) - 1
    short = fit_prompt(PROMPT, RENDERER, Limits(99, tight, prompt_overflow="truncate"), report)
    assert isinstance(short, Prompt)
    assert "first".startswith(short.messages[0].content)
    assert report.notes["prompts truncated inside a paragraph"] == 1


def test_what_the_model_holds_is_a_limit_whatever_the_recipe_allows() -> None:
    length = len(RENDERER.answer(PROMPT.messages, B))
    render_record(Pair(PROMPT, A, B), Renderer(chat.tokenizer(), context=length), ROOM)
    with pytest.raises(
        RowError,
        match=f"{length} tokens, but the model holds {length - 1}; shorten the row or remove",
    ):
        render_record(Pair(PROMPT, A, B), Renderer(chat.tokenizer(), context=length - 1), ROOM)


def test_a_prompt_leaves_room_for_its_answer() -> None:
    length = len(RENDERER.prompt(PROMPT.messages))
    renderer, report = Renderer(chat.tokenizer(), context=length + 5), Report("collect")
    assert fit_prompt(PROMPT, renderer, Limits(answer_tokens=5), report) is PROMPT
    with pytest.raises(
        RowError,
        match=rf"a prompt of {length} tokens, but the model holds {length + 5}, 6 of them for the answer \(roll",
    ):
        fit_prompt(PROMPT, renderer, Limits(answer_tokens=6), report)
    cut = fit_prompt(PROMPT, renderer, Limits(answer_tokens=6, prompt_overflow="truncate"), report)
    assert isinstance(cut, Prompt) and cut.messages[0].content == "first\nsecond"


def test_bad_records_carry_their_place() -> None:
    records = [
        Pair(Prompt(f"{n}", PROMPT.messages), A, (Message("assistant", "x " * n),))
        for n in (1, 90, 2)
    ]
    with pytest.raises(ValueError, match=r"made item 2: \d+ tokens, but at most 60"):
        prepare(from_records("made", records, "pairs"), RENDERER, Limits(60, 50))
    done = prepare(
        from_records("made", records, "pairs"), RENDERER, Limits(60, 50), invalid_rows="skip"
    )
    assert len(done.items) == 2
    assert done.report.kinds == {"long": 1}


def test_margins_are_for_all_or_for_none() -> None:
    records = [Pair(PROMPT, A, B, margin=1.0), Pair(PROMPT, A, B)]
    with pytest.raises(ValueError, match="1 of 2 pairs have a margin"):
        prepare(from_records("made", records, "pairs"), RENDERER, ROOM)


def test_prompts_for_a_sampler() -> None:
    prompts = TASKS["arithmetic"].prompts("train", 5)
    found, report = prepare_prompts(from_records("arithmetic", prompts, "prompts"), RENDERER, ROOM)
    assert [prompt for prompt, _ in found] == list(prompts)
    assert RENDERER.tokenizer.decode(list(found[0][1])).endswith("<|start|>assistant\n")
    assert report.rows == 5


def test_limits_are_checked() -> None:
    with pytest.raises(ValueError, match="prompt_overflow='cut'"):
        Limits(prompt_overflow="cut")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_tokens=1"):
        Limits(max_tokens=1)
