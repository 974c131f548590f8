"""Which tokens are trained: exactly the answers and the token that ends each."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from ascent.data.errors import RowError
from ascent.data.render import Renderer, load_tokenizer
from ascent.models.tiny import tiny_tokenizer
from ascent.records import Message
from tests.data import chat

CHAT = Renderer(chat.tokenizer())
BASE = Renderer(chat.tokenizer(None))

said = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(
    lambda text: "<|" not in text
)
rounds = st.lists(st.tuples(said, said), min_size=1, max_size=3)


def conversation(spoken: list[tuple[str, str]]) -> tuple[Message, ...]:
    return tuple(
        m
        for asked, answered in spoken
        for m in (Message("user", asked), Message("assistant", answered))
    )


def trained_text(renderer: Renderer, rendered: object) -> str:
    return str(renderer.tokenizer.decode(rendered.tokens[rendered.loss_mask].tolist()))  # type: ignore[attr-defined]


@pytest.mark.parametrize("renderer", [CHAT, BASE], ids=["template", "base"])
@settings(max_examples=50)
@given(rounds)
def test_assistant_turns_and_their_ends_are_trained_and_nothing_else(
    renderer: Renderer, spoken: list[tuple[str, str]]
) -> None:
    rendered = renderer.example(conversation(spoken))
    assert trained_text(renderer, rendered) == "".join(
        answered + "<|end|>" for _, answered in spoken
    )
    assert rendered.tokens[-1] == renderer.end_id
    assert rendered.loss_mask[-1]
    assert not rendered.loss_mask[0]


@pytest.mark.parametrize(
    "tokenizer", [chat.tokenizer(), chat.tokenizer(None)], ids=["template", "base"]
)
@settings(max_examples=50)
@given(rounds)
def test_completion_trains_the_last_answer_only(
    tokenizer: object, spoken: list[tuple[str, str]]
) -> None:
    renderer = Renderer(tokenizer, train_on="completion")  # type: ignore[arg-type]
    rendered = renderer.example(conversation(spoken))
    assert trained_text(renderer, rendered) == spoken[-1][1] + "<|end|>"
    assert rendered.loss_mask.tolist() == sorted(rendered.loss_mask.tolist())


@settings(max_examples=50)
@given(rounds)
def test_all_trains_everything_but_the_first_token(spoken: list[tuple[str, str]]) -> None:
    rendered = Renderer(chat.tokenizer(), train_on="all").example(conversation(spoken))
    assert not rendered.loss_mask[0]
    assert rendered.loss_mask[1:].all()


@pytest.mark.parametrize("renderer", [CHAT, BASE], ids=["template", "base"])
@settings(max_examples=50)
@given(rounds)
def test_the_prompt_is_what_a_sampler_is_given(
    renderer: Renderer, spoken: list[tuple[str, str]]
) -> None:
    messages = conversation(spoken)
    rendered = renderer.answer(messages[:-1], messages[-1:])
    assert tuple(rendered.tokens[: rendered.prompt_length].tolist()) == renderer.prompt(
        messages[:-1]
    )
    assert rendered.prompt_length == int(np.flatnonzero(rendered.loss_mask)[0])


def test_tokens_equal_transformers_own_up_to_the_last_end() -> None:
    messages = conversation([("what is 1 + 2 =", "3"), ("sort 3 1 2", "1 2 3")])
    turns = [{"role": message.role, "content": message.content} for message in messages]
    theirs = CHAT.tokenizer.apply_chat_template(turns, tokenize=True, return_dict=False)
    ours = CHAT.example(messages).tokens.tolist()
    assert CHAT.tokenizer.decode(theirs[len(ours) :]) == "\n"
    assert theirs[: len(ours)] == ours
    prompt = CHAT.tokenizer.apply_chat_template(
        turns[:-1], add_generation_prompt=True, return_dict=False
    )
    assert list(CHAT.prompt(messages[:-1])) == prompt


def test_an_answer_that_would_merge_with_the_prompt_stays_apart() -> None:
    """Tokenized whole, a token would lie spans the border, and the prompt would not be what a sampler is given."""
    asked, answered = Message("user", "ques"), Message("assistant", "tion")
    apart = [BASE.tokenizer.encode(text, add_special_tokens=False) for text in ("ques", "tion")]
    assert BASE.tokenizer.encode("question", add_special_tokens=False) != apart[0] + apart[1]
    rendered = BASE.answer((asked,), (answered,))
    assert trained_text(BASE, rendered) == "tion<|end|>"
    assert (
        tuple(rendered.tokens[: rendered.prompt_length].tolist())
        == BASE.prompt((asked,))
        == tuple(apart[0])
    )


def test_pad_equal_to_eos_is_said_and_harmless() -> None:
    shared = Renderer(chat.tokenizer(pad="<|end|>"))
    messages = conversation([("a", "b")])
    assert any("pad equals EOS" in line for line in shared.describe())
    assert not any("pad equals EOS" in line for line in CHAT.describe())
    assert shared.example(messages).loss_mask.tolist() == CHAT.example(messages).loss_mask.tolist()
    assert shared.example(messages).loss_mask[-1]


def test_the_templates_own_end_is_trained_where_it_is_not_eos() -> None:
    renderer = Renderer(chat.tokenizer(eos="<|eos|>"))
    rendered = renderer.example(conversation([("a", "b"), ("c", "d")]))
    assert trained_text(renderer, rendered) == "b<|end|>d<|end|>"
    assert renderer.stop_ids == {2, 3}
    assert any("sampling stops at both" in line for line in renderer.describe())


def test_eos_is_added_where_the_template_ends_turns_with_no_special_token() -> None:
    renderer = Renderer(chat.tokenizer(chat.SPOKEN, eos="<|eos|>"))
    rendered = renderer.example(conversation([("a", "b"), ("c", "d")]))
    assert trained_text(renderer, rendered) == "b<|eos|>d<|eos|>"
    text = renderer.tokenizer.decode(rendered.tokens.tolist())
    assert text == "user: a\nassistant: b<|eos|>\nuser: c\nassistant: d<|eos|>"


def test_a_template_that_rewrites_earlier_turns_is_refused_unless_only_the_last_is_trained() -> (
    None
):
    messages = conversation([("a", "hm</think>b"), ("c", "hm</think>d")])
    tokenizer = chat.tokenizer(chat.FORGETFUL)
    with pytest.raises(RowError, match="train_on: completion"):
        Renderer(tokenizer).example(messages)
    last = Renderer(tokenizer, train_on="completion")
    assert trained_text(last, last.example(messages)) == "hm</think>d<|end|>"


@pytest.mark.parametrize("bos", [False, True])
def test_plain_text_is_trained_whole_without_a_template(bos: bool) -> None:
    renderer = Renderer(chat.tokenizer(bos=bos))
    rendered = renderer.example((Message("assistant", "Once upon a time"),))
    text = "<|bos|>" * bos + "Once upon a time<|end|>"
    assert renderer.tokenizer.decode(rendered.tokens.tolist()) == text
    assert rendered.loss_mask.tolist() == [False] + [True] * (len(rendered) - 1)


def test_a_base_model_gets_bos_contents_and_eos() -> None:
    renderer = Renderer(chat.tokenizer(None, bos=True))
    messages = (Message("system", "sys "), *conversation([("1 + 2 =", " 3")]))
    rendered = renderer.example(messages)
    assert renderer.tokenizer.decode(rendered.tokens.tolist()) == "<|bos|>sys 1 + 2 = 3<|end|>"
    assert renderer.tokenizer.decode(list(renderer.prompt(messages[:-1]))) == "<|bos|>sys 1 + 2 ="
    assert any("no chat template" in line for line in renderer.describe())


def test_a_tokenizer_that_writes_a_space_first_is_tokenized_whole() -> None:
    renderer = Renderer(chat.spaced())
    messages = conversation([("sort 3 1", "1 3"), ("list", "the digits")])
    turns = [{"role": message.role, "content": message.content} for message in messages]
    theirs = renderer.tokenizer.apply_chat_template(turns, tokenize=True, return_dict=False)
    rendered = renderer.example(messages)
    assert rendered.tokens.tolist() == theirs[: len(rendered)]
    assert trained_text(renderer, rendered).replace("<|end|>", " ").split() == [
        "1",
        "3",
        "the",
        "digits",
    ]
    assert rendered.tokens[rendered.loss_mask].tolist().count(renderer.end_id) == 2


def test_a_token_across_the_border_is_an_error_for_such_a_tokenizer() -> None:
    renderer = Renderer(chat.spaced(None))
    with pytest.raises(RowError, match="spans the border"):
        renderer.answer((Message("user", "ques"),), (Message("assistant", "tion"),))


@pytest.mark.parametrize(
    ("messages", "kind", "words"),
    [
        (
            (Message("user", "a"), Message("assistant", "b<|end|>c")),
            "special",
            r"holds '<\|end\|>'",
        ),
        ((Message("user", "<|start|>"), Message("assistant", "b")), "special", "user's text"),
        (
            (Message("user", "a"), Message("assistant", "b"), Message("user", "c")),
            "missing",
            "last message is the user",
        ),
        (
            (Message("assistant", "a"), Message("user", "b"), Message("assistant", "c")),
            "type",
            "starts with the assis",
        ),
    ],
)
def test_conversations_that_cannot_be_rendered(
    messages: tuple[Message, ...], kind: str, words: str
) -> None:
    with pytest.raises(RowError, match=words) as caught:
        CHAT.example(messages)
    assert caught.value.kind == kind


def test_a_templates_own_refusal_is_the_rows_error() -> None:
    strict = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        + chat.CHATML
    )
    with pytest.raises(RowError, match="refuses this conversation: no system"):
        Renderer(chat.tokenizer(strict)).prompt((Message("system", "x"), Message("user", "y")))


def test_what_a_renderer_needs() -> None:
    with pytest.raises(ValueError, match="no EOS token"):
        Renderer(chat.tokenizer(eos=None))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="train_on='answers'"):
        Renderer(chat.tokenizer(), train_on="answers")  # type: ignore[arg-type]


def test_a_tokenizer_is_loaded_from_a_folder(tmp_path) -> None:
    chat.tokenizer().save_pretrained(tmp_path)
    messages = conversation([("a", "b")])
    assert Renderer(load_tokenizer(str(tmp_path))).prompt(messages[:1]) == CHAT.prompt(messages[:1])
    with pytest.raises(ValueError, match="no tokenizer in"):
        load_tokenizer(str(tmp_path / "gone"))


# Between two turns.


def asked_again(role: str = "user") -> list[Message]:
    return [
        Message("user", "sort 2 1"),
        Message("assistant", "as sampled"),
        Message(role, "in order"),
    ]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (chat.CHATML, "\n<|start|>user\nin order<|end|>\n<|start|>assistant\n"),
        (chat.SPOKEN, "\nuser: in order\nassistant: "),
        (None, "in order"),
    ],
)
def test_the_tokens_between_two_turns_are_those_of_the_whole_conversation(template, text):
    """As imitation would render them: what follows the first answer's end, up to the second answer."""
    renderer = Renderer(chat.tokenizer(template))
    between = renderer.between_turns(asked_again())
    assert renderer.tokenizer.decode(list(between)) == text
    whole = renderer.example([*asked_again(), Message("assistant", "1 2")])
    read = [
        int(token)
        for token, trained in zip(whole.tokens, whole.loss_mask, strict=True)
        if not trained
    ]
    assert tuple(read[-len(between) :]) == between


def test_a_conversation_that_cannot_go_on_is_refused_by_name():
    with pytest.raises(ValueError, match="changes earlier turns once a user message follows"):
        Renderer(chat.tokenizer(chat.FORGETFUL)).between_turns(asked_again())
    with pytest.raises(ValueError, match="turns cannot be tokenized separately"):
        Renderer(chat.spaced()).between_turns(asked_again())
    with pytest.raises(RowError, match="control token"):
        Renderer(chat.tokenizer()).between_turns([*asked_again()[:2], Message("user", "<|end|>")])


def test_control_tokens_of_a_reply_are_taken_apart():
    renderer = Renderer(chat.tokenizer())
    assert renderer.escape_control_tokens("a <|end|><<|end|>") == "a < |end|><< |end|>"
    assert renderer.escape_control_tokens("nothing <b>here</b>") == "nothing <b>here</b>"


@pytest.mark.parametrize("renderer", [CHAT, BASE], ids=["template", "base"])
def test_steps_are_judged_at_their_line_breaks_and_the_last_at_the_answers_end(
    renderer: Renderer,
) -> None:
    asked, steps = (Message("user", "1 + 2 + 3 ="),), ["1 + 2 = 3", "3", "3 + 3 = 6"]
    rendered, ends = renderer.steps(asked, steps)
    assert (
        rendered.tokens.tolist()
        == renderer.answer(asked, (Message("assistant", "\n".join(steps)),)).tokens.tolist()
    )
    said = [
        str(renderer.tokenizer.decode(rendered.tokens[rendered.prompt_length : end + 1].tolist()))
        for end in ends
    ]
    assert said == ["1 + 2 = 3\n", "1 + 2 = 3\n3\n", "1 + 2 = 3\n3\n3 + 3 = 6<|end|>"]


def test_steps_that_end_in_one_token_are_refused() -> None:
    tokenizer = tiny_tokenizer(["20202 20202 20202"] * 4, vocabulary=262)
    assert "20202" in tokenizer.get_vocab()
    renderer = Renderer(tokenizer, step_separator="0")
    with pytest.raises(RowError, match="two steps end in one token"):
        renderer.steps((Message("user", "q"),), ["2", "2", "2"])
    # What was sampled is judged all the same: two steps by one token, the last by the answer's end.
    found = renderer.split_steps((Message("user", "q"),), "20202")
    assert (
        found.char_ends == (2, 4, 6)
        and found.token_ends[0] == found.token_ends[1] == found.token_ends[2] - 1
    )


@pytest.mark.parametrize(
    ("text", "separator", "read"),
    [
        # Tokens here write a space with the word behind it: the step before ends in the middle of that token.
        ("what is the answer", " is ", ["what is the", " answer<|end|>"]),
        ("1 2", " ", ["1 2", "<|end|>"]),
        (
            "a→b",
            "→",
            ["a→", "b<|end|>"],
        ),  # an arrow is three bytes and three tokens: read at the last
        ("\n1\n\n2\n", "\n", ["1\n", "2<|end|>"]),  # blank lines are not read
        (" ", "\n", []),
    ],
)
def test_a_step_is_read_at_the_token_that_holds_its_separators_end(
    text: str, separator: str, read: list[str]
) -> None:
    asked = (Message("user", "q"),)
    for tokenizer in (chat.tokenizer(), chat.tokenizer(None)):
        renderer = Renderer(tokenizer, step_separator=separator)
        found = renderer.split_steps(asked, text)
        starts = (found.rendered.prompt_length, *(place + 1 for place in found.token_ends))
        tokens = found.rendered.tokens
        pieces = [tokens[a:b].tolist() for a, b in pairwise(starts)]
        assert [str(tokenizer.decode(piece)) for piece in pieces] == read
        plain = text.strip("\n ").replace("\n\n", "\n")
        assert (
            tokens.tolist()
            == renderer.answer(asked, (Message("assistant", plain),)).tokens.tolist()
        )


TRIMMING = chat.CHATML.replace("m['content']", "m['content'] | trim")


def test_a_template_that_trims_leaves_the_steps_where_they_are() -> None:
    tokenizer = chat.tokenizer(TRIMMING)
    found = Renderer(tokenizer).split_steps((Message("user", "q"),), "  1 + 1\n2\n ")
    assert found.char_ends == (8, 12)
    answer = found.rendered.tokens[found.rendered.prompt_length : found.token_ends[0] + 1].tolist()
    assert tokenizer.decode(answer) == "1 + 1\n" and found.token_ends[1] == len(found.rendered) - 1


def test_a_template_that_changes_the_answer_and_a_tokenizer_that_drops_the_separator_are_refused() -> (
    None
):
    shouting = chat.CHATML.replace("m['content']", "m['content'] | upper")
    with pytest.raises(RowError, match="the chat template changes the answer"):
        Renderer(chat.tokenizer(shouting), check_content=False).split_steps(
            (Message("user", "q"),), "one\ntwo"
        )
    dropping = chat.tokenizer(None)
    dropping.backend_tokenizer.normalizer = normalizers.Replace("\n", "")
    with pytest.raises(
        RowError, match=r"no token for the separator '\\n' after a step.*data\.step_separator"
    ):
        Renderer(dropping).split_steps((Message("user", "q"),), "one\ntwo")
