"""The page on which people judge answers. It writes verdicts and nothing else; models stay hidden from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse
from starlette.routing import Route

from ascent.feedback.labeling import LabelingSession, StaleQuestion
from ascent.view.server import STATIC, make_app

LARGEST_REQUEST = 64 * 1024  # bytes
LARGEST_GUIDELINES = 1024 * 1024
PLACE = "<!-- guidelines -->"
State = dict[str, Any]


def read_guidelines(path: Path) -> str:
    """A Markdown file as HTML. HTML inside it is shown as text; images and links to scripts are not made."""
    content = path.read_bytes()
    if len(content) > LARGEST_GUIDELINES:
        raise ValueError(
            f"{path} has {len(content)} bytes; guidelines are at most {LARGEST_GUIDELINES}"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 at byte {error.start}; re-encode it") from None
    rendered: str = (
        MarkdownIt("commonmark", {"html": False}).enable("table").disable("image").render(text)
    )
    return rendered


def label_app(
    session: LabelingSession,
    *,
    guidelines: str = "",
    host: str = "127.0.0.1",
    token: str | None = None,
) -> Starlette:
    """The application: the page, what to ask an annotator, verdicts and undo. `guidelines` is HTML."""
    document = (STATIC / "label.html").read_text(encoding="utf-8").replace(PLACE, guidelines)
    routes = [
        Route("/", lambda request: HTMLResponse(document)),
        Route("/api/session", lambda request: JSONResponse(_describe(session, guidelines))),
        Route("/api/question", _reading(session)),
        Route("/api/judge", _writing(session, _judge), methods=["POST"]),
        Route("/api/undo", _writing(session, _undo), methods=["POST"]),
    ]
    return make_app(routes, host=host, token=token)


def _describe(session: LabelingSession, guidelines: str) -> State:
    plan = session.plan
    return {
        "form": plan.form,
        "scale": plan.scale,
        "annotators": plan.annotators,
        "guidelines": bool(guidelines),
    }


def _state(session: LabelingSession, annotator: str) -> State:
    """What the page shows. Texts only: the ids of the answers would name their models."""
    shown = session.next(annotator)
    question = None
    if shown is not None:
        messages = shown.question.prompt.messages
        question = {
            "ticket": session.ticket(annotator, shown),
            "messages": [{"role": each.role, "content": each.content} for each in messages],
            "answers": [answer.text for answer in shown.answers],
        }
    return {"annotator": annotator, "question": question, **session.progress(annotator)._asdict()}


def _judge(session: LabelingSession, annotator: str, sent: Mapping[str, Any]) -> State:
    numbers = sent.get("numbers", [])
    if not isinstance(numbers, list) or not all(isinstance(each, int | float) for each in numbers):
        raise ValueError("numbers must be a list of numbers")
    session.judge(
        annotator, _text(sent, "ticket"), _text(sent, "verdict"), numbers, _text(sent, "comment")
    )
    return _state(session, annotator)


def _undo(session: LabelingSession, annotator: str, sent: Mapping[str, Any]) -> State:
    done = sent.get("done")
    if not isinstance(done, int):
        raise ValueError("done must be the number of the annotator's verdicts")
    taken = session.undo(annotator, done)
    before = {"verdict": taken.word, "numbers": taken.numbers, "comment": taken.comment}
    return {**_state(session, annotator), "undone": before}


def _reading(session: LabelingSession) -> Callable[[Request], JSONResponse]:
    def question(request: Request) -> JSONResponse:
        return JSONResponse(
            _state(session, session.annotator(request.query_params.get("annotator", "")))
        )

    return question


def _writing(
    session: LabelingSession, change: Callable[[LabelingSession, str, Mapping[str, Any]], State]
) -> Any:
    """A route that answers once the change is on disk: 409 where the page is out of date, 507 where it failed."""

    async def write(request: Request) -> JSONResponse:
        sent = await _read_body(request)
        annotator = session.annotator(_text(sent, "annotator"))
        try:
            return JSONResponse(await run_in_threadpool(change, session, annotator, sent))
        except StaleQuestion as error:
            return JSONResponse({"error": str(error)}, 409)
        except OSError as error:
            return JSONResponse({"error": str(error)}, 507)

    return write


async def _read_body(request: Request) -> Mapping[str, Any]:
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length) > LARGEST_REQUEST:
        raise ValueError(f"a request has at most {LARGEST_REQUEST} bytes, and says how many")
    try:
        sent = json.loads(await request.body())
    except ValueError:
        raise ValueError("the request is not JSON") from None
    if not isinstance(sent, dict):
        raise ValueError("the request must be a JSON object")
    return sent


def _text(sent: Mapping[str, Any], name: str) -> str:
    value = sent.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text")
    return value
