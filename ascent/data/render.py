"""Chat templates: messages -> token ids and a loss mask.

The loss covers the tokens of an answer and the token that ends it. That end is the special token which the template
writes after an assistant turn; EOS is added where it writes none. Text after the last answer's end is dropped, because
a sampler stops there. The first token of a sequence has no loss: nothing precedes it.

Prompt and answer text are tokenized separately, so the tokens of a prompt are those that a sampler gets and no token
spans the border. Tokenizers that mark the start of a text (SentencePiece's leading space) cannot do that: their text is
tokenized in one piece, and a token across the border is an error.

A template that leaves out a message, or part of an answer that is trained, is an error (`ascent.data.template`).
Where its generation prompt opens an answer ("<think>\\n"), the last answer continues the prompt as a sampler does.

A base model has no template: contents are concatenated, with EOS after every answer, and BOS first if the tokenizer
sets one. A single assistant message is plain text without a template: BOS, the text and EOS, with a loss on all of it.

The mask follows from who wrote a token and never from comparing ids with the pad token, so pad may equal EOS.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ascent.data.errors import RowError
from ascent.data.steps import SEPARATOR, drop_blank_steps, join_steps, step_ends
from ascent.data.template import (
    FIX,
    PROBE,
    Opening,
    check_answer,
    find_opening,
    find_unwritten,
    opened_answer,
)
from ascent.data.tools import check_parts, parts_in, rendered_parts, template_input
from ascent.records import Message

TrainOn = Literal["completion", "assistant", "all"]
THOUGHT = (
    f"<think>\n{PROBE}\n</think>\n\n{PROBE}"  # some templates drop the reasoning of earlier turns
)


@dataclass(frozen=True, eq=False)
class Rendered:
    """Token ids, their loss mask, and the number of tokens before the first answer."""

    tokens: np.ndarray[Any, np.dtype[np.int32]]
    loss_mask: np.ndarray[Any, np.dtype[np.bool_]]
    prompt_length: int

    def __len__(self) -> int:
        return len(self.tokens)


class Span(NamedTuple):
    """Text of the prompt or of an answer."""

    text: str
    is_answer: bool


class SteppedAnswer(NamedTuple):
    """An answer in steps: the character where each ends in the original text, and the token where it is scored."""

    rendered: Rendered
    char_ends: tuple[int, ...]
    token_ends: tuple[int, ...]


class Renderer:
    """Renders with one tokenizer. `stop_ids` end a completion; `step_separator` joins the steps of an answer;
    `context` is the context length of the model, None if unknown. Without `check_content` a template may leave out what
    it does: for scores of answers as its model was trained to see them, and for requests to a server."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        train_on: TrainOn = "assistant",
        step_separator: str = SEPARATOR,
        context: int | None = None,
        check_content: bool = True,
    ) -> None:
        if train_on not in get_args(TrainOn):
            raise ValueError(
                f"train_on={train_on!r}, but it must be one of {', '.join(get_args(TrainOn))}"
            )
        if tokenizer.eos_token is None or tokenizer.eos_token_id is None:
            raise ValueError(
                "the tokenizer has no EOS token, so no answer can end; set tokenizer.eos_token"
            )
        self.tokenizer = tokenizer
        self.train_on = train_on
        self.step_separator = step_separator
        self.context = context
        self.check_content = check_content
        self._unwritten: dict[tuple[object, ...], int | None] = {}
        self._eos: str = str(tokenizer.eos_token)
        if self._encode(self._eos) != [tokenizer.eos_token_id]:
            raise ValueError(
                f"EOS {self._eos!r} is not one token in this tokenizer; add it as a special token"
            )
        self._special = sorted(
            {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
            | {self._eos}
        )
        self._control_tokens = re.compile("|".join(map(re.escape, self._special)))
        self._bos = str(tokenizer.bos_token) if _sets_bos(tokenizer) else ""
        self._can_concat = tokenizer.decode([*self._encode("x"), *self._encode("y")]) == "xy"
        self._tail, self._end = self._turn_end()
        self.end_id: int = self._encode(self._end)[0]
        self.stop_ids: frozenset[int] = frozenset({int(tokenizer.eos_token_id), self.end_id})

    @property
    def has_template(self) -> bool:
        return self.tokenizer.chat_template is not None

    def describe(self) -> list[str]:
        """How this tokenizer renders a conversation, for the user."""
        notes = [f"answers end with {self._end!r} (id {self.end_id}), which has a loss"]
        if self._end != self._eos:
            notes.append(
                f"EOS is {self._eos!r}, but the template ends turns with {self._end!r}: sampling stops at both"
            )
        if not self.has_template:
            notes.append(
                "no chat template (a base model): contents are concatenated, EOS after every answer"
            )
        if self.tokenizer.pad_token_id == self.tokenizer.eos_token_id:
            notes.append(
                "pad equals EOS, which is safe here: the loss mask does not depend on ids, and EOS has a loss"
            )
        return notes

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The tokens a sampler continues."""
        self._check(messages)
        self._check_written(messages, generation_prompt=True)
        text = (
            self._template(messages, generation_prompt=True)
            if self.has_template
            else self._concat(messages)
        )
        return tuple(self._encode(text))

    def between_turns(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The tokens between the end of the last answer and the start of the next: reply and template markers.

        Sampled answers are not rendered again: a probe replaces each. ValueError for a template that changes earlier
        turns, since the policy would then be trained on other text than it reads at inference.
        """
        self._check(messages)
        if not self._can_concat:
            raise ValueError(
                "this tokenizer marks the start of every text, so turns cannot be tokenized separately; use a model "
                "with another tokenizer for several turns"
            )
        last = max(index for index, message in enumerate(messages) if message.role == "assistant")
        if not self.has_template:
            return tuple(self._encode("".join(message.content for message in messages[last + 1 :])))
        self._check_written(messages, generation_prompt=True)
        probed = [
            Message("assistant", THOUGHT) if each.role == "assistant" else each for each in messages
        ]
        before = self._template(probed[: last + 1])
        end = self._trim_turn(before).length
        full = self._template(probed, generation_prompt=True)
        if full[:end] != before[:end]:
            raise ValueError(
                f"the chat template of {self.tokenizer.name_or_path or 'this tokenizer'} changes earlier turns once a "
                f"{messages[-1].role} message follows (most drop the reasoning), so the sampled text is not the text "
                "that is read later; use a template that keeps earlier turns"
            )
        return tuple(self._encode(full[end:]))

    def escape_control_tokens(self, text: str) -> str:
        """The text with a space inside each control token, for replies of tools and games."""
        escaped = {
            token: f"{token[0]} {token[1:]}" if len(token) > 1 else "" for token in self._special
        }
        found = 1
        while found:  # again, because the parts can form new control tokens
            text, found = self._control_tokens.subn(lambda token: escaped[token[0]], text)
        return text

    def example(self, messages: Sequence[Message]) -> Rendered:
        """A demonstration, with the loss mask that `train_on` selects."""
        if len(messages) == 1 and messages[0].role == "assistant":
            self._check(messages)
            spans = [Span(self._bos, False), Span(messages[0].content + self._eos, True)]
            return self._tokenize(spans, train_all=True)
        answers = [index for index, message in enumerate(messages) if message.role == "assistant"]
        trained = answers[-1:] if self.train_on == "completion" else answers
        return self._tokenize(self._spans(messages, trained), train_all=self.train_on == "all")

    def answer(self, prompt: Sequence[Message], answer: Sequence[Message]) -> Rendered:
        """A prompt with one answer; the loss covers the assistant turns of the answer, whatever `train_on` is."""
        trained = [
            len(prompt) + index
            for index, message in enumerate(answer)
            if message.role == "assistant"
        ]
        return self._tokenize(self._spans((*prompt, *answer), trained), train_all=False)

    def steps(
        self, prompt: Sequence[Message], steps: Sequence[str]
    ) -> tuple[Rendered, tuple[int, ...]]:
        """An answer in steps, and the token where each is scored; two steps at one token are a RowError."""
        found = self.split_steps(prompt, join_steps(steps, self.step_separator))
        if len(set(found.token_ends)) != len(found.token_ends):
            raise RowError(
                "special",
                "two steps end in one token of this tokenizer; join them, or lengthen one",
            )
        return found.rendered, found.token_ends

    def split_steps(self, prompt: Sequence[Message], text: str) -> SteppedAnswer:
        """An answer split at its separators, rendered without blank steps. A step is scored at the token that holds the
        last character of its separator, the last step at the end of the answer."""
        original, text = text, drop_blank_steps(text, self.step_separator)
        answer = (Message("assistant", text),)
        rendered, spans = (
            self.answer(prompt, answer),
            self._spans((*prompt, *answer), [len(prompt)]),
        )
        # Tokenized as in `_tokenize`: the answer by itself, or with the prompt.
        shown = spans[-1].text if self._can_concat else "".join(span.text for span in spans)
        kept = text if text in spans[-1].text else text.strip()  # some templates strip the content
        if kept not in spans[-1].text:
            raise RowError(
                "type", "the chat template changes the answer, so its steps cannot be found in it"
            )
        start = shown.rindex(kept) - (len(text) - len(text.lstrip()) if kept != text else 0)
        offsets = self.tokenizer(shown, add_special_tokens=False, return_offsets_mapping=True)[
            "offset_mapping"
        ]
        char_ends = step_ends(original, self.step_separator)
        separators = [start + end for end in step_ends(text, self.step_separator)[:-1]]
        tokens: dict[int, int] = {}
        # Several tokens can cover a character of several bytes; the last one completes it.
        for index, (first, last) in enumerate(offsets):
            tokens |= dict.fromkeys(
                separators[bisect_right(separators, first) : bisect_right(separators, last)], index
            )
        if len(tokens) < len(separators):
            raise RowError(
                "special",
                f"this tokenizer has no token for the separator {self.step_separator!r} after a step, so the step "
                "cannot be scored; set data.step_separator to a text that it does not drop",
            )
        ends = [len(rendered) - len(offsets) + tokens[each] for each in separators]
        return SteppedAnswer(rendered, char_ends, (*ends, len(rendered) - 1) if char_ends else ())

    def _spans(self, messages: Sequence[Message], answers: Sequence[int]) -> list[Span]:
        """Prompt and answer text; `answers` are the indices of the messages that have a loss."""
        self._check(messages)
        if not answers or answers[-1] != len(messages) - 1:
            raise RowError(
                "missing",
                f"the last message is the {messages[-1].role}'s; it must be the assistant's",
            )
        if messages[0].role == "assistant":
            raise RowError(
                "type", "the conversation starts with the assistant; it must start with a question"
            )
        return (
            self._template_spans(messages, answers)
            if self.has_template
            else self._plain_spans(messages, answers)
        )

    def _plain_spans(self, messages: Sequence[Message], answers: Sequence[int]) -> list[Span]:
        spans = [Span(self._bos, False)]
        for index, message in enumerate(messages):
            end = self._eos if message.role == "assistant" else ""
            spans.append(Span(message.content + end, index in answers))
        return spans

    def _concat(self, messages: Sequence[Message]) -> str:
        return "".join(span.text for span in self._plain_spans(messages, ()))

    def _template_spans(self, messages: Sequence[Message], answers: Sequence[int]) -> list[Span]:
        self._check_written(messages, generation_prompt=False)
        full = self._template(messages)
        spans: list[Span] = []
        position = 0
        for index in answers:
            before = self._template(messages[:index], generation_prompt=True)
            after = full if index == len(messages) - 1 else self._template(messages[: index + 1])
            if full.startswith(before) and full.startswith(after) and len(before) < len(after):
                turn = self._trim_turn(full[len(before) : len(after)])
                if self.check_content:
                    check_answer(messages[index], turn.text, self._opening.text)
            else:
                turn = self._opened_turn(messages, index, before, full)
            spans += [Span(before[position:], False), Span(turn.text, True)]
            position = len(before) + turn.length
        return spans

    def _opened_turn(
        self, messages: Sequence[Message], index: int, before: str, full: str
    ) -> _Turn:
        """The last answer, where the generation prompt opens it and the template writes it otherwise."""
        if index < len(messages) - 1:
            raise RowError(
                "type",
                f"the chat template changes the text before message {index} once more messages follow, so its "
                "answer cannot be located; train on the last answer only (train_on: completion)",
            )
        text = (
            opened_answer(
                messages[index], before, full, self._opening.opened, check=self.check_content
            )
            + self._end
        )
        return _Turn(text, len(text))

    def _trim_turn(self, turn: str) -> _Turn:
        """An assistant turn up to its end token, and how many characters of the rendered turn that covers."""
        found = turn.rfind(self._end)
        if found >= 0:
            return _Turn(turn[: found + len(self._end)], found + len(self._end))
        stripped = turn.rstrip()
        if stripped.endswith(
            tuple(self._special)
        ):  # some templates end tool calls with another token
            return _Turn(stripped, len(stripped))
        content = turn.removesuffix(self._tail)
        return _Turn(content + self._end, len(content))

    def _tokenize(self, spans: Sequence[Span], *, train_all: bool) -> Rendered:
        tokens, is_answer = (
            self._tokenize_separately(spans) if self._can_concat else self._tokenize_jointly(spans)
        )
        loss_mask = np.array(is_answer, dtype=np.bool_)
        prompt_length = int(loss_mask.argmax())
        if train_all:
            loss_mask[:] = True
        loss_mask[0] = False
        if not loss_mask.any():
            raise RowError(
                "empty", "no token has a loss: a text of one token has nothing to predict it from"
            )
        return Rendered(np.array(tokens, dtype=np.int32), loss_mask, prompt_length)

    def _tokenize_separately(self, spans: Sequence[Span]) -> tuple[list[int], list[bool]]:
        """Adjacent spans of one kind are one text, as in `prompt`."""
        tokens: list[int] = []
        is_answer: list[bool] = []
        for kind, run in groupby(spans, key=lambda span: span.is_answer):
            ids = self._encode("".join(span.text for span in run))
            tokens += ids
            is_answer += [kind] * len(ids)
        return tokens, is_answer

    def _tokenize_jointly(self, spans: Sequence[Span]) -> tuple[list[int], list[bool]]:
        char_is_answer = [span.is_answer for span in spans for _ in span.text]
        text = "".join(span.text for span in spans)
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        is_answer: list[bool] = []
        for start, end in encoded["offset_mapping"]:
            chars = (
                char_is_answer[start:end] or char_is_answer[start : start + 1] or [is_answer[-1]]
            )
            if len(set(chars)) != 1:
                raise RowError(
                    "special",
                    "a token spans the border of prompt and answer; end the prompt differently",
                )
            is_answer.append(chars[0])
        return list(encoded["input_ids"]), is_answer

    def _check(self, messages: Sequence[Message]) -> None:
        if wanted := parts_in(messages):
            check_parts(wanted, self._tool_parts, self.tokenizer.name_or_path or "this tokenizer")
        for message in messages:
            found = self._control_tokens.search(message.content) or self._control_tokens.search(
                message.extra
            )
            if found is not None:
                raise RowError(
                    "special",
                    f"the {message.role}'s text holds {found[0]!r}, which this tokenizer reads as a control token; "
                    "remove it from the text",
                )

    def _check_written(self, messages: Sequence[Message], *, generation_prompt: bool) -> None:
        """RowError where the template leaves out a message; rendered once for conversations of the same roles."""
        if not self.has_template or not self.check_content:
            return
        shape = (
            generation_prompt,
            *((each.role, bool(each.extra), bool(each.content.strip())) for each in messages),
        )
        if shape not in self._unwritten:
            render = partial(self._template, generation_prompt=generation_prompt)
            self._unwritten[shape] = find_unwritten(messages, render)
        if (lost := self._unwritten[shape]) is not None:
            raise RowError(
                "type",
                f"the chat template leaves out message {lost}, the {messages[lost].role}'s: the model would not see "
                f"{messages[lost].content!r:.60}; {FIX}",
            )

    @cached_property
    def _opening(self) -> Opening:
        return find_opening(self._template, partial(self._template, generation_prompt=True))

    @cached_property
    def _tool_parts(self) -> frozenset[str] | None:
        return rendered_parts(self._template) if self.has_template else None

    def _template(self, messages: Sequence[Message], *, generation_prompt: bool = False) -> str:
        turns, tools = template_input(messages)
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    turns, tools=tools, tokenize=False, add_generation_prompt=generation_prompt
                )
            )
        except Exception as error:  # a template can raise anything
            raise RowError(
                "type", f"the chat template refuses this conversation: {error}"
            ) from error

    def _turn_end(self) -> tuple[str, str]:
        """The text that the template writes after an assistant turn, and its first special token (default EOS)."""
        if not self.has_template:
            return "", self._eos
        probe = self._template(
            (Message("user", PROBE), Message("assistant", f"{PROBE} {PROBE}")),
            generation_prompt=False,
        )
        tail = probe.rpartition(PROBE)[2]
        ends = [(tail.find(token), token) for token in self._special if token in tail]
        return tail, min(ends)[1] if ends else self._eos

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False)) if text else []


class _Turn(NamedTuple):
    text: str
    length: int


def _sets_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    if tokenizer.bos_token_id is None:
        return False
    return list(tokenizer.encode("x", add_special_tokens=True))[:1] == [tokenizer.bos_token_id]


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """A tokenizer from a folder or the hub. Its own code is not run."""
    try:
        found = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"no tokenizer in {name!r}: {reason}; give a model's folder or a hub name"
        ) from None
    assert isinstance(found, PreTrainedTokenizerBase)
    return found
