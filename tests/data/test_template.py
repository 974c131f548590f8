"""What a chat template leaves out of a conversation, and answers that the generation prompt opens."""

from __future__ import annotations

import pytest

from ascent.data.errors import RowError
from ascent.data.prepare import Limits, render_record
from ascent.data.render import Renderer
from ascent.records import Message, Pair, Prompt, Ranking
from tests.data import chat

ASKED = Message("user", "what is 1 + 2")
THOUGHT = "<think>\ncareful\n</think>\n\n3"


def answer(text: str) -> Message:
    return Message("assistant", text)


def renderer(template: str, **options: object) -> Renderer:
    return Renderer(chat.tokenizer(template), **options)  # type: ignore[arg-type]


def parts(made: Renderer, *messages: Message) -> tuple[str, str]:
    """Prompt and answer of a conversation, as text."""
    rendered = made.example(messages)
    decode = made.tokenizer.decode
    prompt = rendered.tokens[: rendered.prompt_length].tolist()
    assert prompt == list(made.prompt(messages[:-1]))  # what a sampler gets
    return str(decode(prompt)), str(decode(rendered.tokens[rendered.loss_mask].tolist()))


def test_reasoning_that_is_trained_is_not_left_out() -> None:
    for train_on in ("completion", "assistant", "all"):
        with pytest.raises(
            RowError,
            match=r"leaves out part of an answer that is trained: '<think>.*becomes '\\n\\n3<",
        ):
            renderer(chat.STRIPPING, train_on=train_on).example((ASKED, answer(THOUGHT)))
    with pytest.raises(RowError, match="leaves out part of an answer that is trained"):
        renderer(chat.STRIPPING).answer((ASKED,), (answer(THOUGHT),))
    assert parts(renderer(chat.STRIPPING), ASKED, answer("3"))[1] == "3<|end|>"


def test_reasoning_of_earlier_answers_may_be_left_out() -> None:
    """A sampler does not see it either."""
    for template in (chat.STRIPPING, chat.FORGETFUL):
        made = renderer(template, train_on="completion")
        prompt, trained = parts(made, ASKED, answer(THOUGHT), Message("user", "and 4"), answer("7"))
        assert "careful" not in prompt and trained == "7<|end|>"


@pytest.mark.parametrize(
    "write",
    [
        "m['content'] | trim",
        "m['content'] | replace('\\n', ' ')",
        "'<think>\\n\\n</think>\\n\\n' + m['content']",
        "'<|start|>' + m['content']",
    ],
)
def test_an_answer_may_be_written_with_other_white_space_and_more_text(write: str) -> None:
    trained = parts(
        renderer(chat.CHATML.replace("m['content']", write)), ASKED, answer(" 1\n+ 2\n")
    )[1]
    assert "".join(trained.split()).endswith("1+2<|end|>")


@pytest.mark.parametrize("role", ["system", "tool"])
def test_a_message_that_the_template_does_not_write_is_refused(role: str) -> None:
    made = renderer(chat.TWO_ROLES)
    lost = Message(role, "3")  # as short as this, it is part of other texts
    messages = (
        (lost, ASKED, answer("3"))
        if role == "system"
        else (ASKED, answer("x"), lost, answer("it is 3"))
    )
    words = f"leaves out message {messages.index(lost)}, the {role}'s: the model would not see '3'"
    for _ in range(2):
        with pytest.raises(RowError, match=words):
            made.example(messages)
        with pytest.raises(RowError, match=words):
            made.prompt(messages[:-1])
        with pytest.raises(RowError, match=words):
            made.answer(messages[:-1], messages[-1:])
    with pytest.raises(RowError, match="leaves out message 2, the tool's"):
        made.between_turns([ASKED, answer("x"), Message("tool", "3")])
    made.example((ASKED, answer("3")))
    made.example((Message("system", ""), ASKED, answer("3")))  # nothing is lost
    unchecked = renderer(chat.TWO_ROLES, check_content=False)
    assert unchecked.prompt((Message("system", "x"), ASKED)) == made.prompt((ASKED,))


def test_only_the_last_of_two_system_messages_is_written_by_some_templates() -> None:
    last = "{% for m in messages if m['role'] == 'system' %}{% if loop.last %}{{ m['content'] }}{% endif %}{% endfor %}"
    made = renderer(last + chat.TWO_ROLES)
    made.prompt((Message("system", "x"), ASKED))
    with pytest.raises(
        RowError, match="leaves out message 0, the system's: the model would not see 'first'"
    ):
        made.prompt((Message("system", "first"), Message("system", "second"), ASKED))


@pytest.mark.parametrize(
    "write",
    [
        "m['content'] | tojson",  # Llama 3 for replies of tools
        "m['content'].replace('/no_think', '') | trim",  # SmolLM3, Nemotron
        "m['content'] | upper",
    ],
)
def test_texts_that_a_template_writes_otherwise_are_not_refused(write: str) -> None:
    template = chat.CHATML.replace(
        "{{ m['content'] }}", f"{{{{ m['content'] if m['role'] == 'assistant' else {write} }}}}"
    )
    messages = (
        Message("system", 'Say "3" /no_think'),
        ASKED,
        answer("x"),
        Message("tool", '{"a":\n3}'),
        answer("3"),
    )
    assert parts(renderer(template, train_on="completion"), *messages)[1] == "3<|end|>"
    assert len(renderer(template).example(messages)) == len(
        renderer(template, check_content=False).example(messages)
    )


@pytest.mark.parametrize("train_on", ["completion", "assistant"])
@pytest.mark.parametrize(
    ("text", "trained"),
    [
        (THOUGHT, "careful\n</think>\n\n3"),
        ("<think>careful</think>3", "careful</think>3"),
        ("<think>\n\n</think>\n\n3", "\n</think>\n\n3"),
        ("careful\n</think>\n\n3", "careful\n</think>\n\n3"),  # as sampled
    ],
)
def test_an_answer_goes_on_where_the_generation_prompt_ends(
    train_on: str, text: str, trained: str
) -> None:
    made = renderer(chat.OPENING, train_on=train_on)
    prompt = f"<|start|>user\n{ASKED.content}<|end|>\n<|start|>assistant\n<think>\n"
    assert parts(made, ASKED, answer(text)) == (prompt, f"{trained}<|end|>")
    for chosen in made.answer((ASKED,), (answer(text),)), made.example((ASKED, answer(text))):
        assert chosen.tokens[-1] == made.end_id


def test_several_turns_with_an_opened_thought() -> None:
    messages = (ASKED, answer(THOUGHT), Message("user", "and 4"), answer(THOUGHT.replace("3", "7")))
    prompt, trained = parts(renderer(chat.OPENING, train_on="completion"), *messages)
    assert prompt.count("careful") == 0 and trained == "careful\n</think>\n\n7<|end|>"
    with pytest.raises(RowError, match="train on the last answer only"):
        renderer(chat.OPENING).example(messages)


def test_a_template_that_opens_and_writes_the_thought_is_used_as_it_is() -> None:
    template = chat.CHATML.replace(
        "<|start|>assistant\n{% endif %}", "<|start|>assistant\n<think>\n{% endif %}"
    )
    assert parts(renderer(template), ASKED, answer(THOUGHT))[1] == "careful\n</think>\n\n3<|end|>"


def test_an_answer_without_the_opened_thought_is_refused() -> None:
    """The model would learn to answer inside the thought, and never to end it."""
    words = r"opens every answer with '<think>\\n', but this one neither begins with it nor closes it; begin it with"
    with pytest.raises(RowError, match=words):
        renderer(chat.OPENING).example((ASKED, answer("3")))
    unchecked = renderer(
        chat.OPENING, check_content=False
    )  # what a policy sampled, cut off while it thought
    assert parts(unchecked, ASKED, answer("careful"))[1] == "careful<|end|>"


def test_an_answer_that_does_not_follow_the_generation_prompt_is_refused_with_the_reason() -> None:
    other = chat.CHATML.replace("<|start|>assistant\n{% endif %}", "<|start|>model\n{% endif %}")
    with pytest.raises(
        RowError,
        match=r"ends a prompt with .*<\|start\|>model\\n', but begins this answer otherwise",
    ):
        renderer(other, train_on="completion").example((ASKED, answer("3")))
    calls = Message(
        "assistant",
        THOUGHT,
        '{"tool_calls": [{"function": {"name": "add", "arguments": {"probe_key": 1}}}]}',
    )
    opening = chat.TOOLS.replace(
        "<|start|>assistant\n{% endif %}", "<|start|>assistant\n<think>\n{% endif %}"
    )
    opening = opening.replace("{{ m['content'] }}", "{{ m['content'].split('</think>')[-1] }}")
    with pytest.raises(
        RowError, match=r"opens an answer with '<think>.n', but not one with tool calls"
    ):
        renderer(opening).example((ASKED, calls))


def test_answers_that_are_the_same_once_rendered_hold_no_preference() -> None:
    trimming = chat.CHATML.replace("m['content']", "m['content'] | trim")
    made, prompt = renderer(trimming), Prompt("p", (ASKED,), "3")
    one, same, other = (answer("3"),), (answer(" 3\n"),), (answer("4"),)
    with pytest.raises(
        RowError, match="two answers that are compared have the same tokens"
    ) as caught:
        render_record(Pair(prompt, one, same), made, Limits())
    assert caught.value.kind == "equal"
    with pytest.raises(RowError, match="the same tokens"):
        render_record(Ranking(prompt, (one, other, same)), made, Limits())
    assert (
        len(render_record(Ranking(prompt, (one, same, other), (0, 0, 1)), made, Limits()).sequences)
        == 3
    )
    assert len(render_record(Pair(prompt, one, other), made, Limits(), gold=True).sequences) == 3
    unchecked = renderer(trimming, check_content=False)
    assert len(render_record(Pair(prompt, one, same), unchecked, Limits()).sequences) == 2
