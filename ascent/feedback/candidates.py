"""Answers that exist already, to be judged: the rollouts of a run, or the answers in a file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from ascent.data import columns as values
from ascent.data.columns import Columns
from ascent.data.errors import Report, RowError
from ascent.data.load import parse_name, read_rows
from ascent.data.schemas import ANSWERS, RESPONSES, read_pair, read_question
from ascent.feedback.comparisons import Answer
from ascent.records import Message, Prompt
from ascent.runs.folder import CONFIG, SAMPLES

Messages = tuple[Message, ...]
DAMAGED = "damaged lines"
COLUMNS = {"step", "id", "prompt", "completion", "tokens"}
EPISODE = "episodes of an environment"


@dataclass
class Candidates:
    """Prompts, the answers to each by its id, and counts of what was left out."""

    prompts: list[Prompt] = field(default_factory=list)
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    _ids: dict[Any, str] = field(default_factory=dict)
    _models: dict[str, int] = field(default_factory=dict)

    def takes(self, group: Any, limit: int | None) -> bool:
        """Whether a prompt is one of the first `limit`."""
        return limit is None or len(self.prompts) < limit or group in self._ids

    def add(
        self, group: Any, name: str, messages: Messages, text: str, model: str, tokens: int = 0
    ) -> None:
        """Answers with the same `group` answer one prompt; `name` is the id of a new prompt."""
        if group not in self._ids:
            self._ids[group] = name
            self.prompts.append(Prompt(name, messages))
            self.answers[name] = []
        index = self._models.setdefault(model, len(self._models))
        own = self.answers[self._ids[group]]
        number = sum(answer.model == model for answer in own)
        own.append(Answer(f"{index}.{number}", model, text, tokens))


def is_run(source: str) -> bool:
    return (Path(source).expanduser() / CONFIG).is_file()


def read_run_candidates(
    run: Path, *, step: int | None = None, limit: int | None = None
) -> Candidates:
    """The rollouts in samples.jsonl: a prompt of one step is a group. The file may grow; groups keep their ids."""
    found = Candidates()
    for record in _records(run / SAMPLES, found.left_out):
        if step not in (None, record["step"]):
            continue
        group = f"{record['id']}@{record['step']}"
        if "ended" in record:
            found.left_out[EPISODE] += 1
        elif found.takes(group, limit):
            raw = record.get("messages") or [{"role": "user", "content": record["prompt"]}]
            messages = tuple(Message(each["role"], each["content"]) for each in raw)
            found.add(group, group, messages, record["completion"], run.name, len(record["tokens"]))
        else:
            break
    if not found.prompts:
        where = f"{run} has" if step is None else f"step {step} of {run} has"
        reason = "".join(f" ({count} {why})" for why, count in (+found.left_out).items())
        raise ValueError(
            f"{where} no logged rollouts to judge{reason}; sample answers of it: ascent label {run} --prompts PROMPTS"
        )
    return found


def _records(path: Path, left_out: Counter[str]) -> Iterator[Mapping[str, Any]]:
    """Complete lines, one at a time: the file of a long run does not fit into memory."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if isinstance(record, dict) and record.keys() >= COLUMNS:
                yield record
            else:
                left_out[DAMAGED] += line.endswith(
                    b"\n"
                )  # the last line may still be being written


def read_file_candidates(name: str, *, limit: int | None = None) -> Candidates:
    """The answers in a file, or in anything else that `ascent.data.load` reads.

    A row has a question and one answer (rows with the same question belong together, `model` may name who answered), or
    a list of answers (`responses`, with `models`), or `chosen` and `rejected`.
    """
    found, report = Candidates(), Report()
    _, path, rows = parse_name(name)
    for row in islice(read_rows(path), rows):
        report.rows += 1
        try:
            if row.error is not None:
                raise row.error
            columns = Columns(row.id or f"{row.place.file}:{row.place.number}", row.fields)
            messages, answers = _read_answers(columns, Path(path).name)
        except RowError as error:
            report.add(row.place, error)
            continue
        if found.takes(messages, limit):
            for text, model in answers:
                found.add(messages, columns.id, messages, text, model)
    report.finish(len(found.prompts))
    return found


def _read_answers(columns: Columns, source: str) -> tuple[Messages, list[tuple[str, str]]]:
    """The question of a row, and its answers with their models."""
    if columns.has("chosen"):
        pair = read_pair(columns)
        return pair.prompt.messages, [
            (_one_text(turns), source) for turns in (pair.chosen, pair.rejected)
        ]
    listed = next((name for name in RESPONSES if isinstance(columns.row.get(name), list)), None)
    messages = read_question(columns)
    if listed is None:
        name = columns.first(ANSWERS)
        return messages, [
            (_answer_text(columns.get(name), name), str(columns.optional("model") or source))
        ]
    texts = [_answer_text(each, f"{listed}[{n}]") for n, each in enumerate(columns.get(listed))]
    models = columns.optional("models") or [source] * len(texts)
    if not isinstance(models, list) or len(models) != len(texts):
        raise RowError("type", f"models must name one model for each of the {len(texts)} {listed}")
    return messages, list(zip(texts, map(str, models), strict=True))


def _answer_text(value: Any, name: str) -> str:
    """An answer may be empty: models write such answers, and they are counted and not asked about."""
    if isinstance(value, str) and not value.strip():
        return ""
    return _one_text(values.answer(value, name))


def _one_text(turns: Sequence[Message]) -> str:
    if len(turns) != 1:
        raise RowError(
            "type",
            f"an answer has {len(turns)} messages; only answers of one message can be judged",
        )
    return turns[0].content
