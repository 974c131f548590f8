"""The one home of chat templates: messages -> token ids, and which of them are trained.

What is trained: an answer's tokens and the token that ends it. That end is the special token which the template puts
after an assistant's turn; where it puts none, EOS is added. Everything after the last answer's end is cut, because a
sampler stops there too. The first token of a sequence is never trained: nothing comes before it to predict it from.

Each stretch between "read" and "answered" is tokenized alone, so that the tokens of a prompt are those a sampler is
given, and no token lies on both sides of the border. (Tokenizers that mark the start of a text with a space cannot be
cut like that; their texts are tokenized whole, and a token across the border is an error.)

A base model has no template: contents are joined as they are, nothing between them, EOS after every answer, BOS first
if the tokenizer sets one. A lone assistant message is plain text: BOS if any, the text, EOS, all trained, no template.

Masks come from who wrote a token, never from comparing ids with the pad token, so pad may equal EOS without harm.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ascent.data.errors import RowError
from ascent.data.steps import SEPARATOR, joined, step_ends, without_blanks
from ascent.records import Message

TrainOn = Literal["completion", "assistant", "all"]
PROBE = "probe"
THOUGHT = f"<think>\n{PROBE}\n</think>\n\n{PROBE}"  # some templates drop what an assistant thought earlier


@dataclass(frozen=True, eq=False)
class Rendered:
    """Token ids, which are trained, and how many come before the first answer."""

    tokens: np.ndarray[Any, np.dtype[np.int32]]
    trained: np.ndarray[Any, np.dtype[np.bool_]]
    prompt: int

    def __len__(self) -> int:
        return len(self.tokens)


class Piece(NamedTuple):
    """A stretch of text, read or answered."""

    text: str
    answered: bool


class SteppedText(NamedTuple):
    """An answer whose steps are judged, as the model reads it: where each step ends in the text as it was written
    (`step_ends`), and at which token it is read."""

    rendered: Rendered
    ends: tuple[int, ...]
    places: tuple[int, ...]


class Renderer:
    """Renders with one tokenizer. `stop_ids` are the tokens at which a sampler must stop; `step_separator` stands
    between the steps of an answer; `context` is how many tokens the model holds, where that is known."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        train_on: TrainOn = "assistant",
        step_separator: str = SEPARATOR,
        context: int | None = None,
    ) -> None:
        if train_on not in get_args(TrainOn):
            raise ValueError(f"train_on={train_on!r}, but it must be one of {', '.join(get_args(TrainOn))}")
        if tokenizer.eos_token is None or tokenizer.eos_token_id is None:
            raise ValueError("the tokenizer has no EOS token, so no answer could ever end; set tokenizer.eos_token")
        self.tokenizer = tokenizer
        self.train_on = train_on
        self.step_separator = step_separator
        self.context = context
        self._eos: str = str(tokenizer.eos_token)
        if self._encode(self._eos) != [tokenizer.eos_token_id]:
            raise ValueError(f"EOS {self._eos!r} is not one token in this tokenizer; add it as a special token")
        self._special = sorted(
            {token.content for token in tokenizer.added_tokens_decoder.values() if token.special} | {self._eos}
        )
        self._control = re.compile("|".join(map(re.escape, self._special)))
        self._bos = str(tokenizer.bos_token) if _sets_bos(tokenizer) else ""
        self._joins = tokenizer.decode([*self._encode("x"), *self._encode("y")]) == "xy"
        self._tail, self._end = self._turn_end()
        self.end_id: int = self._encode(self._end)[0]
        self.stop_ids: frozenset[int] = frozenset({int(tokenizer.eos_token_id), self.end_id})

    @property
    def templated(self) -> bool:
        return self.tokenizer.chat_template is not None

    def describe(self) -> list[str]:
        """What this tokenizer makes of a conversation, for people."""
        said = [f"answers end with {self._end!r} (id {self.end_id}), which is trained"]
        if self._end != self._eos:
            said.append(f"EOS is {self._eos!r}, but the template ends turns with {self._end!r}: sampling stops at both")
        if not self.templated:
            said.append("no chat template (a base model): contents are joined as they are, EOS after every answer")
        if self.tokenizer.pad_token_id == self.tokenizer.eos_token_id:
            said.append("pad equals EOS, which is harmless here: masks come from lengths, and EOS is trained")
        return said

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The tokens a sampler continues."""
        self._check(messages)
        text = self._template(messages, opened=True) if self.templated else self._joined(messages)
        return tuple(self._encode(text))

    def between(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The tokens from where the last answer ended to where the next begins: what was said to it, and the markers.

        What was sampled is never rendered again: a probe stands in for every answer. ValueError for a template that
        changes what came before it, since then a policy would not be trained on what it reads when it is used.
        """
        self._check(messages)
        if not self._joins:
            raise ValueError(
                "this tokenizer writes a mark before every text, so texts cannot be tokenized apart and turns not be "
                "joined; use a model with another tokenizer for several turns"
            )
        last = max(place for place, message in enumerate(messages) if message.role == "assistant")
        if not self.templated:
            return tuple(self._encode("".join(message.content for message in messages[last + 1 :])))
        shown = [Message("assistant", THOUGHT) if each.role == "assistant" else each for each in messages]
        before = self._template(shown[: last + 1], opened=False)
        end = self._up_to_end(before).length
        whole = self._template(shown, opened=True)
        if whole[:end] != before[:end]:
            raise ValueError(
                f"the chat template of {self.tokenizer.name_or_path or 'this tokenizer'} changes earlier turns once a "
                f"{messages[-1].role} message follows (most drop what the assistant thought), so what was sampled is "
                "not what would be read; use a template that leaves earlier turns as they are"
            )
        return tuple(self._encode(whole[end:]))

    def harmless(self, text: str) -> str:
        """The text with its control tokens taken apart: what tools and games say cannot be checked beforehand."""
        apart = {token: f"{token[0]} {token[1:]}" if len(token) > 1 else "" for token in self._special}
        found = 1
        while found:  # all at once, then whatever the pieces make up together
            text, found = self._control.subn(lambda token: apart[token[0]], text)
        return text

    def example(self, messages: Sequence[Message]) -> Rendered:
        """A conversation to imitate, trained as `train_on` says."""
        if len(messages) == 1 and messages[0].role == "assistant":
            self._check(messages)
            pieces = [Piece(self._bos, False), Piece(messages[0].content + self._eos, True)]
            return self._rendered(pieces, everything=True)
        answers = [place for place, message in enumerate(messages) if message.role == "assistant"]
        first = answers[-1:] if self.train_on == "completion" else answers
        return self._rendered(self._pieces(messages, first), everything=self.train_on == "all")

    def answer(self, prompt: Sequence[Message], answer: Sequence[Message]) -> Rendered:
        """A prompt with one answer; the assistant's turns of the answer are trained, whatever `train_on` says."""
        places = [len(prompt) + place for place, message in enumerate(answer) if message.role == "assistant"]
        return self._rendered(self._pieces((*prompt, *answer), places), everything=False)

    def steps(self, prompt: Sequence[Message], steps: Sequence[str]) -> tuple[Rendered, tuple[int, ...]]:
        """An answer in steps, and the places where each is judged, no two of them at one token."""
        found = self.in_steps(prompt, joined(steps, self.step_separator))
        if len(set(found.places)) != len(found.places):
            raise RowError("special", "two steps end in one token of this tokenizer; join them, or lengthen one")
        return found.rendered, found.places

    def in_steps(self, prompt: Sequence[Message], text: str) -> SteppedText:
        """An answer split at its separators, read without what is blank. Each step is judged at the token that holds
        its separator's last character, whatever else that token holds, and the last one at the answer's end."""
        written, text = text, without_blanks(text, self.step_separator)
        answer = (Message("assistant", text),)
        rendered, pieces = self.answer(prompt, answer), self._pieces((*prompt, *answer), [len(prompt)])
        # What is read and what is answered are tokenized apart, or all of it together: as `_rendered` does.
        shown = pieces[-1].text if self._joins else "".join(piece.text for piece in pieces)
        kept = text if text in pieces[-1].text else text.strip()  # some templates trim what they are given
        if kept not in pieces[-1].text:
            raise RowError("type", "the chat template changes the answer, so its steps cannot be found in it")
        start = shown.rindex(kept) - (len(text) - len(text.lstrip()) if kept != text else 0)
        spans = self.tokenizer(shown, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        ends = step_ends(written, self.step_separator)
        asked = [start + end for end in step_ends(text, self.step_separator)[:-1]]
        holding: dict[int, int] = {}
        # A character of several bytes may be several tokens, which all cover it: it is written with the last.
        for place, (first, last) in enumerate(spans):
            holding |= dict.fromkeys(asked[bisect_right(asked, first) : bisect_right(asked, last)], place)
        if len(holding) < len(asked):
            raise RowError(
                "special",
                f"this tokenizer has no token for the separator {self.step_separator!r} behind a step, so nothing "
                "could be judged there; set data.step_separator to a text that it does not drop",
            )
        places = [len(rendered) - len(spans) + holding[each] for each in asked]
        return SteppedText(rendered, ends, (*places, len(rendered) - 1) if ends else ())

    def _pieces(self, messages: Sequence[Message], answers: Sequence[int]) -> list[Piece]:
        self._check(messages)
        if not answers or answers[-1] != len(messages) - 1:
            raise RowError("missing", f"the last message is the {messages[-1].role}'s; it must be the assistant's")
        if messages[0].role == "assistant":
            raise RowError("type", "the conversation starts with the assistant; something must be asked first")
        return self._templated(messages, answers) if self.templated else self._plain(messages, answers)

    def _plain(self, messages: Sequence[Message], answers: Sequence[int]) -> list[Piece]:
        pieces = [Piece(self._bos, False)]
        for place, message in enumerate(messages):
            end = self._eos if message.role == "assistant" else ""
            pieces.append(Piece(message.content + end, place in answers))
        return pieces

    def _joined(self, messages: Sequence[Message]) -> str:
        return "".join(piece.text for piece in self._plain(messages, ()))

    def _templated(self, messages: Sequence[Message], answers: Sequence[int]) -> list[Piece]:
        whole = self._template(messages, opened=False)
        pieces: list[Piece] = []
        at = 0
        for place in answers:
            before = self._template(messages[:place], opened=True)
            after = self._template(messages[: place + 1], opened=False)
            if not (whole.startswith(before) and whole.startswith(after) and len(before) < len(after)):
                raise RowError(
                    "type",
                    f"the chat template changes what comes before message {place} once more messages follow, so its "
                    "answer cannot be found again; train on the last answer only (train_on: completion)",
                )
            answered = self._up_to_end(whole[len(before) : len(after)])
            pieces += [Piece(whole[at : len(before)], False), Piece(answered.text, True)]
            at = len(before) + answered.length
        return pieces

    def _up_to_end(self, turn: str) -> _Answered:
        """An assistant's turn as trained text, and how many characters of the rendered turn it covers."""
        found = turn.rfind(self._end)
        if found >= 0:
            return _Answered(turn[: found + len(self._end)], found + len(self._end))
        said = turn.removesuffix(self._tail)
        return _Answered(said + self._end, len(said))

    def _rendered(self, pieces: Sequence[Piece], *, everything: bool) -> Rendered:
        tokens, answered = self._apart(pieces) if self._joins else self._together(pieces)
        trained = np.array(answered, dtype=np.bool_)
        prompt = int(trained.argmax())
        if everything:
            trained[:] = True
        trained[0] = False
        if not trained.any():
            raise RowError("empty", "nothing is left to train: a text of one token has nothing to predict it from")
        return Rendered(np.array(tokens, dtype=np.int32), trained, prompt)

    def _apart(self, pieces: Sequence[Piece]) -> tuple[list[int], list[bool]]:
        """Encode what is read and what is answered apart, neighbours of one kind as one text, as `prompt` does."""
        tokens: list[int] = []
        answered: list[bool] = []
        for kind, run in groupby(pieces, key=lambda piece: piece.answered):
            ids = self._encode("".join(piece.text for piece in run))
            tokens += ids
            answered += [kind] * len(ids)
        return tokens, answered

    def _together(self, pieces: Sequence[Piece]) -> tuple[list[int], list[bool]]:
        owner = [piece.answered for piece in pieces for _ in piece.text]
        encoded = self.tokenizer(
            "".join(piece.text for piece in pieces), add_special_tokens=False, return_offsets_mapping=True
        )
        answered: list[bool] = []
        for start, end in encoded["offset_mapping"]:
            span = owner[start:end] or owner[start : start + 1] or [answered[-1]]
            if len(set(span)) != 1:
                raise RowError(
                    "special", "a token lies across the border of prompt and answer; end the prompt otherwise"
                )
            answered.append(span[0])
        return list(encoded["input_ids"]), answered

    def _check(self, messages: Sequence[Message]) -> None:
        for message in messages:
            found = self._control.search(message.content)
            if found is not None:
                raise RowError(
                    "special",
                    f"the {message.role}'s text holds {found[0]!r}, which this tokenizer reads as a control token; "
                    "remove it from the text",
                )

    def _template(self, messages: Sequence[Message], *, opened: bool) -> str:
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            return str(self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=opened))
        except Exception as error:  # templates raise whatever they like; it becomes this row's error, with its cause
            raise RowError("type", f"the chat template refuses this conversation: {error}") from error

    def _turn_end(self) -> tuple[str, str]:
        """What the template writes after an assistant's turn, and the special token in it (EOS where there is none)."""
        if not self.templated:
            return "", self._eos
        probe = self._template((Message("user", PROBE), Message("assistant", f"{PROBE} {PROBE}")), opened=False)
        tail = probe.rpartition(PROBE)[2]
        ends = [(tail.find(token), token) for token in self._special if token in tail]
        return tail, min(ends)[1] if ends else self._eos

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False)) if text else []


class _Answered(NamedTuple):
    text: str
    length: int


def _sets_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    if tokenizer.bos_token_id is None:
        return False
    return list(tokenizer.encode("x", add_special_tokens=True))[:1] == [tokenizer.bos_token_id]


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """A tokenizer from a folder or a hub name. Code that comes with it is not run."""
    try:
        found = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"no tokenizer in {name!r}: {reason}; give a model's folder or a hub name") from None
    assert isinstance(found, PreTrainedTokenizerBase)
    return found
