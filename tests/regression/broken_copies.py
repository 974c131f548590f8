"""Copies of the package that differ in one file, and pytest on each of them in a forked child.

Importing torch and transformers costs more than most tests do. So one process imports what the package imports from
them, and forks a child for every copy. That process is this file run as a program. It must not know `ascent` itself: a
first child lists the modules.
"""

from __future__ import annotations

import compileall
import contextlib
import gc
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]

# Exit statuses beside pytest's own (0 passed, 1 failed, 2 and more: not even that).
CRASHED, OTHER_COPY, TIMEOUT = 98, 99, 124


class Outcome(NamedTuple):
    status: int
    failed: str  # the first test that failed, or the file that could not be collected
    seconds: float


def compiled_copy(folder: Path) -> Path:
    """The package as it is, with the bytecode of all its files."""
    shutil.copytree(ROOT / "ascent", folder / "ascent")
    assert compileall.compile_dir(folder / "ascent", quiet=1)
    return folder


def copy_with(file: Path, text: str, unbroken: Path, folder: Path) -> Path:
    """Links to the files of `unbroken`, but `file`, relative to the package, is a new one."""
    shutil.copytree(unbroken / "ascent", folder / "ascent", copy_function=os.link)
    target = folder / "ascent" / file
    for stale in (target, *target.parent.glob(f"__pycache__/{target.stem}.*")):
        stale.unlink()
    target.write_text(text)
    return folder


class ForkingPytest:
    """Runs pytest with one copy after the other. A context manager: its process ends with it."""

    def __enter__(self) -> ForkingPytest:
        # Bytecode is written, so that a test file is compiled by its first child alone.
        variables = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(ROOT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**variables, "OMP_NUM_THREADS": "1"},
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        self._process.stdout.close()

    def run(
        self,
        package: Path,
        tests: Sequence[str],
        options: Sequence[str] = (),
        *,
        limit: float = 600,
    ) -> Outcome:
        """Up to the first failure, or `limit` seconds. Tests are named from tests/ on.

        What pytest prints is in `package/output`.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        arguments = [*options, *(str(ROOT / "tests" / test) for test in tests)]
        print(json.dumps([str(package), arguments, limit]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, f"the process that forks ended with status {self._process.wait()}"
        return Outcome(*json.loads(answer))


def run_forked(work: Callable[[], int], limit: float) -> int:
    """The exit status of `work` in a child process. The child's own children end with it."""
    child = os.fork()
    if child == 0:
        status = CRASHED
        try:
            os.setpgid(0, 0)
            status = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    try:
        return _wait(child, limit)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)


def _wait(child: int, limit: float) -> int:
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return TIMEOUT


class FirstFailure:
    """A plugin that writes the name of the first test that failed."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def _note(self, report: Any) -> None:
        if report.failed and not self.file.exists():
            self.file.write_text(report.nodeid)

    pytest_runtest_logreport = pytest_collectreport = _note


def run_pytest(root: Path, package: Path, arguments: list[str]) -> int:
    import pytest

    output = (package / "output").open("w")
    os.dup2(output.fileno(), 1), os.dup2(output.fileno(), 2)
    # Programs that tests start import the copy too.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    os.environ["PYTHONSAFEPATH"] = "1"  # `python -m` would put the checkout first
    # The project's own settings put the checkout first on the path; here the copy must come before it.
    path = ["-c", f"{root}/pyproject.toml", "--rootdir", str(root), "-o"]
    path += [f"pythonpath={package} {root}"]
    plain = ["-p", "no:cacheprovider", "-p", "no:xdist"]
    plain += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    plugin = FirstFailure(package / "failed")
    status = int(pytest.main(["-q", "-x", *plain, *path, *arguments], plugins=[plugin]))
    imported = getattr(sys.modules.get("ascent"), "__file__", None)
    return OTHER_COPY if imported and not imported.startswith(str(package)) else status


def import_shared_modules(root: Path) -> None:
    """Import what `ascent` imports of the libraries that take long, without `ascent` itself."""
    with tempfile.NamedTemporaryFile("r") as listed:

        def list_modules() -> int:
            sys.path.insert(0, str(root))
            import ascent.api.train  # noqa: F401

            shared = ("torch", "transformers", "numpy", "sympy", "tokenizers", "matplotlib")
            names = [name for name in list(sys.modules) if name.partition(".")[0] in shared]
            Path(listed.name).write_text(" ".join(names))
            return 0

        assert run_forked(list_modules, limit=300) == 0
        names = listed.read().split()
    for name in names:
        with contextlib.suppress(ImportError):  # a name that another module put there
            importlib.import_module(name)


def main() -> None:
    import anyio.pytest_plugin  # noqa: F401
    import hypothesis.strategies  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401

    root = Path(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what modules print as they are imported is no answer
    import_shared_modules(root)
    gc.collect()
    gc.freeze()  # pytest collects garbage several times as it ends: not all of torch each time
    for line in sys.stdin:
        package, arguments, limit = json.loads(line)
        start = time.monotonic()
        status = run_forked(partial(run_pytest, root, Path(package), arguments), limit)
        failed = Path(package) / "failed"
        outcome = Outcome(
            status, failed.read_text() if failed.exists() else "", time.monotonic() - start
        )
        print(json.dumps(outcome), file=answers, flush=True)


if __name__ == "__main__":
    main()
