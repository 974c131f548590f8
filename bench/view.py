"""How fast the page of `ascent view` is: 500 runs, one of them with 10^5 steps and 10^6 samples, and live ones.

Figures: time until the command listens, first contentful paint and complete content of each view in Chromium, memory of
the server and of the page, and seconds from a logged step to the page. The folder is written once; VIEW_BENCH names it.
With --folder, only the list and the first run of another folder, such as that of the quick start. --write keeps the
figures in bench/results/.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from ascent.runs.folder import RunFolder
from ascent.runs.lock import Lock
from tests.view.browser import find_browser, wait_for

RUNS, STEPS, SAMPLES_PER_STEP = 500, 100_000, 10
RECIPE = {"algorithm": "grpo", "model.policy": "tiny:llama", "run.steps": STEPS, "seed": 0}


def metrics(step: int, rng: random.Random) -> dict[str, float]:
    reward = 1 / (1 + math.exp(3 - step / 20_000)) + rng.gauss(0, 0.05)
    found = {
        "reward/mean": reward,
        "reward/correct": reward,
        "loss/total": rng.gauss(0, 0.1),
        "tokens/run": 4096.0,
    }
    found |= {
        f"policy/{name}": rng.random()
        for name in ("entropy", "approx_kl", "ref_kl", "ratio_max", "ratio_min")
    }
    found |= {
        f"time/{name}": rng.random()
        for name in ("sample", "score", "prepare", "update", "refresh", "step")
    }
    found |= {
        f"completion/{name}": rng.random()
        for name in ("length_mean", "length_max", "truncated_frac")
    }
    found |= {f"reward/part{number}": rng.random() for number in range(12)}
    return found | (
        {"eval/reward/correct": reward, "eval/reward/mean": reward} if step % 100 == 0 else {}
    )


def make(folder: Path, steps: int, *, samples: bool = False) -> None:
    rng = random.Random(steps)
    inputs = json.dumps({"format": 2, "recipe": RECIPE | {"run.steps": steps}, "inputs": []})
    with RunFolder.create(
        folder, "# Resolved by ascent 0 from bench; itself a recipe.\n", {}, inputs=inputs
    ) as run:
        with (folder / "metrics.jsonl").open("w") as file:
            for step in range(1, steps + 1):
                file.write(
                    json.dumps({"step": step, "timestamp": 1e9 + step, **metrics(step, rng)}) + "\n"
                )
        if samples:
            words = [f" word{number}" for number in range(60)]
            rest = {
                "parts": {"verifier": 1.0},
                "stop": "eos",
                "advantages": 0.5,
                "tokens": words,
                "of": 64,
            }
            rest |= {"logprobs": [-0.1234] * 60, "completion": "".join(words)}
            text = json.dumps(
                {"prompt": "what is the sum?", "reward": 1.0, **rest}, separators=(",", ":")
            )[1:]
            with (folder / "samples.jsonl").open("w") as file:
                for step in range(1, steps + 1):
                    lines = (
                        f'{{"step":{step},"id":"p{n // 5}","sample":{n % 5},{text}\n'
                        for n in range(SAMPLES_PER_STEP)
                    )
                    file.writelines(lines)
        # Not `finish`, which draws the curves, a second for every run.
        run.write(
            "outcome.json",
            json.dumps({"ending": "finished", "step": steps, "message": "", "timestamp": 0.0}),
        )


def make_all(root: Path) -> None:
    if (root / "complete").exists():
        return
    for number in range(RUNS - 1):
        make(root / f"sweep-{number % 10}/run-{number}", 200)
    make(root / "long", STEPS, samples=True)
    (root / "complete").touch()


def memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return round(int(status.partition("VmRSS:")[2].split()[0]) / 1024)


def heap_mb(page: Page) -> float:
    """JavaScript's heap of a page."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    found = {
        each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]
    }
    return round(found["JSHeapUsedSize"] / 1e6, 1)


def page_mb() -> float:
    """Resident memory of the largest process for pages of this bench's browser."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])

    def is_own(pid: int) -> bool:
        return pid == os.getpid() or (pid in parents and is_own(parents[pid]))

    def is_renderer(pid: int) -> bool:
        with suppress(OSError):
            return b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes()
        return False

    return max(memory_mb(pid) for pid in parents if is_own(pid) and is_renderer(pid))


@contextmanager
def server_of(folder: Path) -> Iterator[tuple[str, int, float]]:
    """The address and process of `ascent view`, and the seconds until it listens."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "ascent", "view", str(folder), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        url = server.stdout.readline().split(" at ")[1].split()[0]
        yield url, server.pid, round(time.perf_counter() - started, 2)
    finally:
        server.terminate()
        server.wait()


def open_view(browser: Browser, url: str, ready: str) -> tuple[Page, dict[str, float]]:
    """A view in a page of its own: seconds to first paint and to complete content, and the page's memory."""
    page = browser.new_page()
    began = time.perf_counter()
    page.goto(url)
    wait_for(page, ready, seconds=60)
    taken = time.perf_counter() - began
    paint = page.evaluate(
        "performance.getEntriesByName('first-contentful-paint')[0]?.startTime / 1000"
    )
    found = {"paint_s": round(paint, 2), "content_s": round(taken, 2)}
    return page, found | {"heap_mb": heap_mb(page), "page_mb": page_mb()}


def views_of(
    browser: Browser, url: str, server: int, views: dict[str, tuple[str, str]]
) -> dict[str, Any]:
    found = {}
    for name, (path, ready) in views.items():
        page, figures = open_view(browser, url + path, ready)
        found[name] = figures | {"server_mb": memory_mb(server)}
        page.close()
    return found


LIST = "document.querySelectorAll('tr[data-run]').length >= {}"
SCORES = "document.querySelectorAll('svg.spark').length >= {}"
CURVES = "document.querySelectorAll('.panel canvas').length > 5"
SAMPLES = "document.querySelectorAll('.sample').length >= {}"


@contextmanager
def live(folder: Path, logged: dict[int, float]) -> Iterator[None]:
    """A run that logs a step every 1.5 s."""
    stop = threading.Event()

    def write() -> None:
        rng, inputs = random.Random(0), json.dumps({"format": 2, "recipe": RECIPE, "inputs": []})
        with RunFolder.create(folder, "algorithm: grpo\n", {}, inputs=inputs) as run:
            step = 0
            while not stop.wait(1.5):
                step += 1
                run.log(step, metrics(step, rng))
                logged[step] = time.time()

    try:
        yield from _writing(write, stop)
    finally:
        shutil.rmtree(folder)


@contextmanager
def live_again(folder: Path, logged: dict[int, float]) -> Iterator[None]:
    """The long run, as if it went on."""
    stop, path = threading.Event(), folder / "metrics.jsonl"
    size = path.stat().st_size

    def write() -> None:
        rng = random.Random(0)
        with Lock(folder), path.open("a", buffering=1) as file:
            step = STEPS
            while not stop.wait(1.5):
                step += 1
                file.write(
                    json.dumps({"step": step, "timestamp": 1e9 + step, **metrics(step, rng)}) + "\n"
                )
                logged[step] = time.time()

    try:
        yield from _writing(write, stop)
    finally:
        os.truncate(path, size)


def _writing(write: Callable[[], None], stop: threading.Event) -> Iterator[None]:
    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def delays_of(page: Page, where: str, logged: dict[int, float], count: int = 6) -> dict[str, float]:
    """Seconds from a logged step to the number on the page."""
    delays = []
    while not logged:
        time.sleep(0.05)
    first = max(logged) + 1
    for step in range(first, first + count):
        wait_for(
            page,
            f"document.querySelector(`{where}`)?.textContent.startsWith('{step:,} ')",
            seconds=30,
        )
        delays.append(time.time() - logged[step])
    return {"median_s": round(statistics.median(delays), 2), "largest_s": round(max(delays), 2)}


def measure_long(browser: Browser, root: Path) -> dict[str, Any]:
    with server_of(root) as (url, pid, listens):
        found: dict[str, Any] = {"listens_s": listens, "listens_mb": memory_mb(pid)}
        found |= views_of(browser, url, pid, {"runs": ("", LIST.format(RUNS))})
    with server_of(root) as (url, pid, _):  # a new one: the other has read the scores meanwhile
        samples = SAMPLES.format(SAMPLES_PER_STEP)
        views = {
            "runs, all scores": ("", SCORES.format(RUNS)),
            "one run": ("#/run?run=long", CURVES),
            "rollouts": ("#/run?run=long&tab=rollouts", samples),
            "rollouts, a middle step": (f"#/run?run=long&tab=rollouts&step={STEPS // 2}", samples),
            "one run, every step": (
                "#/run?run=long",
                f"{CURVES} && document.querySelector('p[role=status]').hidden",
            ),
        }
        found |= views_of(browser, url, pid, views)
        logged: dict[int, float] = {}
        name = f"live-{time.time_ns()}"
        with live(root / name, logged):
            while not logged:
                time.sleep(0.05)
            page, _ = open_view(
                browser, f"{url}#/run?run={name}", "document.querySelector('.meter')"
            )
            found["update of a run"] = delays_of(page, ".meter .number", logged)
            page.close()
            page, _ = open_view(browser, url, LIST.format(RUNS))
            found["update of the list"] = delays_of(
                page, f"tr[data-run='{name}'] .meter .number", logged
            )
            page.close()
        again: dict[int, float] = {}
        with live_again(root / "long", again):
            page, _ = open_view(browser, f"{url}#/run?run=long", CURVES)
            found["update of the long run"] = delays_of(page, ".meter .number", again)
            page.close()
    return found


def measure_folder(browser: Browser, folder: Path) -> dict[str, Any]:
    with server_of(folder) as (url, pid, listens):
        page, found = open_view(browser, url, f"{LIST.format(1)} && {SCORES.format(1)}")
        name = page.eval_on_selector("tr[data-run]", "each => each.dataset.run")
        page.close()
        views = {
            "one run": (f"#/run?run={name}", CURVES),
            "rollouts": (f"#/run?run={name}&tab=rollouts", SAMPLES.format(1)),
        }
        figures = {"listens_s": listens, "listens_mb": memory_mb(pid), "runs": found}
        return figures | views_of(browser, url, pid, views)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="a folder of runs to open, instead of the 500")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="keep the figures in bench/results")
    given = parser.parse_args()
    root = given.folder or Path(os.environ.get("VIEW_BENCH") or tempfile.mkdtemp())
    if given.folder is None:
        make_all(root)
    measure = measure_long if given.folder is None else measure_folder
    with sync_playwright() as playwright:
        repetitions = []
        for _ in range(given.repeat):
            browser = playwright.chromium.launch(
                executable_path=find_browser(), args=["--no-sandbox"]
            )
            repetitions.append(measure(browser, root))
            print(json.dumps(repetitions[-1], indent=1))
            browser.close()
    if given.write:
        name, words = (
            ("view", "") if given.folder is None else ("view-quickstart", " --folder FOLDER")
        )
        path = (
            Path(__file__).parent / "results" / f"{datetime.date.today().isoformat()}-{name}.json"
        )
        hardware = {"cpu": cpu_name(), "cores": os.cpu_count(), "machine": platform.machine()}
        content = {
            "command": f"python bench/view.py{words} --repeat {given.repeat}",
            "hardware": hardware,
        }
        path.write_text(json.dumps({**content, "repetitions": repetitions}, indent=1) + "\n")


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""
    )


if __name__ == "__main__":
    main()
