"""A process that grades programs, one JSON line in, one out. Started by the pool; as root it first becomes nobody."""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

# Everything is imported before root is dropped: afterwards the interpreter's own folder may be out of reach.
from ascent.sandbox.grade import BadTests, grade, run_once
from ascent.sandbox.isolation import Interpreter, become_nobody, require_bubblewrap
from ascent.sandbox.limits import Limits
from ascent.sandbox.session import Broken, Session, driver_source


def answer(job: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    limits = Limits(**job["limits"])
    start = functools.partial(_start, limits=limits, settings=settings)
    try:
        return run_once(job, limits, start) if job["style"] == "run" else grade(job, limits, start)
    except BadTests as error:
        return {"unscored": "bad_tests", "detail": str(error)}
    except Broken as error:
        return {"unscored": "sandbox", "detail": str(error)}


def _start(side: Any, *, limits: Limits, settings: dict[str, Any]) -> Session:
    return Session(side, limits, **settings)


def main() -> None:
    mode, slot = sys.argv[1], int(sys.argv[2])
    bwrap = require_bubblewrap() if mode == "bubblewrap" else ""
    settings: dict[str, Any] = {"mode": mode, "bwrap": bwrap, "source": driver_source()}
    interpreter = Interpreter.mine()
    settings["interpreter"] = become_nobody(slot, interpreter) if mode == "bubblewrap" else interpreter
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), settings)), flush=True)


if __name__ == "__main__":
    main()
