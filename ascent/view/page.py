"""`ascent view`: a page over run folders. It reads them and nothing else, and writes nothing."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ascent.metrics import EVAL, REGISTRY, find_metric, plotted
from ascent.runs.folder import CHANGES, CONFIG, ENVIRONMENT, INPUTS, OUTCOME
from ascent.view import rollouts
from ascent.view.comparison import compare_curves, differing_settings
from ascent.view.files import WARNINGS
from ascent.view.library import Library, RunReader
from ascent.view.metric_log import AXES, Curve, smooth, thin
from ascent.view.server import link, listen, make_app, make_token, page, serve

MAX_POINTS = 4000
GROUPS = list(dict.fromkeys(each.name.partition("/")[0] for each in REGISTRY))


def view(
    folders: Sequence[str | Path] = (),
    *,
    port: int = 8770,
    host: str = "127.0.0.1",
    say: Callable[[str], None] = print,
) -> None:
    """Serve a page over run folders until interrupted: curves, rollouts, settings, warnings, live.

    folders: run folders, or folders that hold some; by default runs.
    port: the port to listen on; 0 takes a free one.
    host: the address to listen on; on any other than loopback, the printed link has a token.
    say: receives the link once the page can be opened.

        view(["runs"], port=8770)
    """
    library, token = Library([Path(each) for each in folders or ("runs",)]), make_token(host)
    app = page_app(library, host=host, token=token)
    with listen(host, port) as sock:
        say(
            f"{len(library.runs())} runs at {link(host, sock.getsockname()[1], token)}  (Ctrl-C ends)"
        )
        serve(app, sock)


def page_app(library: Library, *, host: str = "127.0.0.1", token: str | None = None) -> Starlette:
    """The application: the page and what it asks for."""

    def answer(function: Callable[[Request], Any]) -> Callable[[Request], Response]:
        return lambda request: as_json(function(request))

    def of_run(
        function: Callable[[RunReader, Mapping[str, str]], Any],
    ) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            run = library.run(request.query_params.get("run", ""))
            with run.lock:
                return as_json(function(run, request.query_params))

        return respond

    routes = {
        "runs": lambda request: _list_runs(library, request.query_params.get("since", "")),
        "compare": answer(lambda request: _compare(library, request)),
        "run": of_run(describe_run),
        "curves": of_run(read_curves),
        "rollouts": of_run(read_rollouts),
        "rollout": of_run(read_rollout),
        "heldout": of_run(read_heldout),
    }
    paths = [Route(f"/api/{name}", endpoint) for name, endpoint in routes.items()]
    return make_app([page("index.html"), *paths], host=host, token=token)


def as_json(content: Any) -> Response:
    """JSON has no NaN, and a text of a model may hold half a surrogate pair."""
    text = json.dumps(_finite(content), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return Response(text.encode(errors="replace"), media_type="application/json")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def _list_runs(library: Library, since: str) -> Response:
    """A line about every run; nothing where they are as in the answer whose revision is `since`."""
    runs, pending = library.lines(seconds=0.5 if since else 0.0)  # a first look at once
    found = {"runs": runs, "pending": pending}
    revision = hashlib.sha256(repr(found).encode()).hexdigest()
    return as_json({"revision": revision} if since == revision else {**found, "revision": revision})


def _compare(library: Library, request: Request) -> dict[str, Any]:
    query = request.query_params
    names = list(dict.fromkeys(query.getlist("run")))
    if len(names) < 2:
        raise ValueError(f"{len(names)} run; a comparison needs at least two")
    runs = [library.run(name) for name in names]
    for run in runs:
        with run.lock:
            run.metrics.refresh()
    options = _curve_options(query)
    curves = compare_curves(
        runs, query.getlist("name"), fold=query.get("fold") == "true", **options
    )
    logged = dict.fromkeys(name for run in runs for name in run.metrics.columns.metrics)
    return {
        "settings": differing_settings(runs),
        "metrics": [describe_metric(name) for name in logged],
        "complete": all(run.metrics.complete for run in runs),
        "revision": "-".join(run.metrics.revision for run in runs),
        **curves,
    }


def describe_run(run: RunReader, query: Mapping[str, str]) -> dict[str, Any]:
    """Everything but curves and rollouts."""
    run.metrics.refresh()
    files, inputs = run.files, run.files.json(INPUTS)
    origins = inputs.get("origins", {}) if isinstance(inputs, dict) else {}
    columns = run.metrics.columns
    return {
        "line": run.line(),
        "scores": run.scores(),
        "metrics": [
            {**describe_metric(name), "last": columns.last(name)} for name in columns.metrics
        ],
        "recipe": [
            {"key": key, "value": value, "origin": origins.get(key, "")}
            for key, value in run.recipe().items()
        ],
        "config": files.text(CONFIG),
        "environment": files.json(ENVIRONMENT) or [],
        "changes": files.records(CHANGES),
        "warnings": files.records(WARNINGS),
        "diagnosis": files.diagnosis(),
        "checkpoints": files.checkpoints(),
        "outcome": files.json(OUTCOME),
        "output": files.output(),
        "samples": rollouts.step_range(run),
        "unreadable": columns.unreadable,
        "revision": run.metrics.revision,
    }


def describe_metric(name: str) -> dict[str, Any]:
    """What the registry says about a metric, and where its panel belongs."""
    info, own = find_metric(name), name.removeprefix(EVAL)
    order = plotted()
    return {
        "name": name,
        "heldout": name.startswith(EVAL),
        "group": own.partition("/")[0] if own.partition("/")[0] in GROUPS else "other",
        "unit": info.unit if info else "",
        "summary": info.summary if info else "Not in the registry.",
        "low": info.low if info else None,
        "high": info.high if info else None,
        "plot": order.index(own) if own in order else None,
    }


def read_curves(run: RunReader, query: Any) -> dict[str, Any]:
    """Curves of the named metrics, thinned to the width of a screen."""
    run.metrics.refresh()
    options, columns = _curve_options(query), run.metrics.columns
    found = {name: columns.curve(name, options["axis"]) for name in query.getlist("name")}
    return {
        "curves": {name: as_lists(curve, options) for name, curve in found.items()},
        "complete": run.metrics.complete,
        "share": run.metrics.share,
        "revision": run.metrics.revision,
        "state": run.state(),
    }


def as_lists(curve: Curve, options: Mapping[str, Any]) -> dict[str, Any]:
    smoothed = smooth(curve, options["window"])
    found: dict[str, Any] = {"of": len(curve.y), "non_finite": curve.non_finite}
    for key, each in (
        {"": curve, "smooth_": smoothed}.items() if options["window"] > 1 else {"": curve}.items()
    ):
        few = thin(each, options["points"])
        found |= {f"{key}x": few.x.tolist(), f"{key}y": few.y.tolist()}
    return found


def _curve_options(query: Mapping[str, str]) -> dict[str, Any]:
    axis = query.get("axis", "step")
    if axis not in AXES:
        raise ValueError(f"axis={axis!r}; the axis is one of {', '.join(AXES)}")
    return {
        "axis": axis,
        "window": read_number(query, "window", 1, 1, 10**6),
        "points": read_number(query, "points", 800, 2, MAX_POINTS),
    }


def read_number(query: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = query.get(name) or str(default)
    if not text.lstrip("-").isdecimal() or not low <= int(text) <= high:
        raise ValueError(f"{name}={text!r}; it must be a whole number from {low} to {high}")
    return int(text)


def read_rollouts(run: RunReader, query: Mapping[str, str]) -> dict[str, Any]:
    """The samples of a step in groups of a prompt, or what a search over all steps finds."""
    wanted = {
        "which": query.get("which", "all"),
        "order": query.get("order", ""),
        "text": query.get("text", ""),
    }
    steps = rollouts.step_range(run)
    if query.get("everywhere") == "true":
        before = read_number(query, "before", 0, 0, 2**63) or None
        found = rollouts.search(run, **wanted, before=before)
    else:
        step = read_number(query, "step", steps[1] if steps else 0, 0, 2**63)
        all_of = rollouts.samples_of(run, step)
        found = all_of._replace(samples=rollouts.select(all_of.samples, **wanted))
    return {
        "steps": steps,
        "groups": rollouts.in_groups([rollouts.shorten(each) for each in found.samples]),
        "unreadable": found.unreadable,
        "go_on": found.go_on,
        "searched": found.steps,
    }


def read_rollout(run: RunReader, query: Mapping[str, str]) -> dict[str, Any]:
    """One sample in full."""
    step, number = (
        read_number(query, "step", 0, 0, 2**63),
        read_number(query, "sample", 0, 0, 2**63),
    )
    for each in rollouts.samples_of(run, step).samples:
        if str(each.get("id")) == query.get("id") and each.get("sample") == number:
            return each
    raise FileNotFoundError(f"sample {number} of step {step} is no longer in the run folder")


def read_heldout(run: RunReader, query: Mapping[str, str]) -> dict[str, Any]:
    """The held-out prompts, or the answers to one of them over the steps."""
    if "place" not in query:
        return rollouts.heldout_prompts(run)
    return {"answers": rollouts.heldout_answers(run, read_number(query, "place", 0, 0, 2**31))}
