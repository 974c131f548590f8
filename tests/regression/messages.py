"""The net for messages: every error of the package that a test provokes stands in messages.txt.

Loaded by tests/conftest.py in every process. An error is recorded where `pytest.raises` catches it, where a command
that runs inside a test ends with it, and where a child process prints it. Below it stand the test functions that
provoke it: a function whose cases all passed must have provoked what the file says of it. What did not run, was
skipped or failed says nothing, so any part of the suite can be compared. A message whose tests are all gone is lost
too, but only a run of every test file can tell: the tests may have moved.

A message that is lost or changed fails the run, a new one is listed. `pytest --record-messages` writes both into the
file, for the tests that it runs. Where a message holds what differs between machines, write <any> there by hand.
"""

from __future__ import annotations

import difflib
import dis
import platform
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, wraps
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).with_name("messages.txt")
TESTS = Path(__file__).parent.parent
HEAD = """\
# Every error of the package that the tests provoke, sorted by its text, and below it the tests that provoke it.
# Written by `pytest --record-messages` (tests/regression/messages.py). A line that goes or shrinks is the users' loss.
"""
ANY = "<any>"  # what a message in the file may hold in place of any text
MOST = 20  # messages that are printed at the end of a run

Messages = dict[
    str, set[str]
]  # "ValueError: text" -> test functions, each "tests/folder/test_file.py::test_name"


# The text of a message: what differs between runs and machines is replaced, the numbers of rules stay.

PATH = r"[^\s'\"`(=,\[]*"
VARYING = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # Of a test only that it is one, so that it can be renamed and moved.
        (re.escape(str(TESTS)) + r"/[\w/]+\.py|\b[\w/]*\btest_\w+\.py", "<test>.py"),
        (re.escape(str(TESTS.parent)), "<checkout>"),
        (PATH + r"/pytest-of-[^/\s]+/pytest-\d+(/popen-gw\d+)?(/[\w.-]*\w)?", "<tmp>"),
        (re.escape(tempfile.gettempdir()) + r"/[\w.-]*\w", "<tmp>"),
        (re.escape(sys.executable), "<python>"),
        (PATH + r"/site-packages\b", "<site-packages>"),
        (PATH + r"/lib/python3\.\d+\b", "<python>"),
        (r"\btest_\w+(\[[^]]*\])?(?=\.<locals>)", "<test>"),
        (r"\btests(\.\w+)+", "<test>"),
        (r"\.py:\d+", ".py:N"),
        (r"(\.py\"?, line) \d+", r"\1 N"),
        (r"\bat 0x[0-9a-f]+", "at 0x..."),
        (r"\bascent-server-\w+", "ascent-server-<name>"),
        # What a tiny policy sampled depends on the processor.
        (
            r"(rollout\.text|completions|completion_ids)=.*?(?=, \w[\w.]*=|; |\n|$)",
            r"\1=<sampled>",
        ),
        (r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{12,64}\b", "<hash>"),
        (
            r"(127\.0\.0\.1|localhost|0\.0\.0\.0|\[::1?\])(:|, port=| port |', )\d{4,}",
            r"\1\2PORT",
        ),
        (r"\b(pid|process) \d{2,}", r"\1 N"),
        (rf"\bon {re.escape(platform.node())}\b", "on <host>"),
        (r"(errors\.pydantic\.dev)/[\d.]+", r"\1"),
    )
]


def normalize(text: str, basetemp: str = "") -> str:
    """`basetemp` is the folder of temporary folders where it was given to pytest by name."""
    if basetemp:
        text = re.sub(re.escape(basetemp) + r"(/popen-gw\d+)?(/[\w.-]*\w)?", "<tmp>", text)
    for pattern, replacement in VARYING:
        text = pattern.sub(replacement, text)
    printable = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
    return "\n".join(line.rstrip() for line in printable.strip().split("\n"))


# Where errors are seen.


def own_error(error: BaseException | None) -> BaseException | None:
    """The error, or what ended the command, if a `raise` of the package raised it: not Python, a library or a test."""
    if isinstance(error, SystemExit):
        return own_error(error.__context__) if error.code else None
    trace = error and error.__traceback__
    if not trace:
        return None
    while trace.tb_next:
        trace = trace.tb_next
    code, module = trace.tb_frame.f_code.co_code, trace.tb_frame.f_globals.get("__name__", "")
    raised = dis.opname[code[trace.tb_lasti]] == "RAISE_VARARGS"
    return error if raised and module.partition(".")[0] == "ascent" else None


class Recorder:
    """The messages that the test provokes which this process runs."""

    def __init__(self, basetemp: str | None = None) -> None:
        self.provoked: set[str] = set()
        self._basetemp = (
            re.sub(r"/popen-gw\d+$", "", str(Path(basetemp).resolve())) if basetemp else ""
        )
        self._patches = ExitStack()

    def add(self, kind: str, text: str) -> None:
        if text := normalize(text, self._basetemp):
            self.provoked.add(f"{kind}: {text}")

    def add_error(self, error: BaseException | None) -> None:
        if error := own_error(error):
            self.add(
                type(error).__name__, "\n".join([str(error), *getattr(error, "__notes__", ())])
            )

    def take(self) -> list[str]:
        provoked, self.provoked = sorted(self.provoked), set()
        return provoked

    def watch(self, owner: Any, name: str, see: Callable[[Any, Any, Any], None]) -> None:
        """Call `see(self, arguments, result)` after the method."""
        method = getattr(owner, name)

        @wraps(method)
        def watched(this: Any, *args: Any, **options: Any) -> Any:
            __tracebackhide__ = True
            result = method(this, *args, **options)
            see(this, args, result)
            return result

        setattr(owner, name, watched)
        self._patches.callback(setattr, owner, name, method)

    def start(self) -> None:
        self.watch(pytest.RaisesExc, "__exit__", self._see_raises)
        self.watch(subprocess.Popen, "communicate", self._see_child)
        if testing := sys.modules.get("typer.testing"):
            self.watch(testing.CliRunner, "invoke", self._see_command)

    def stop(self) -> None:
        self._patches.close()

    def _see_raises(self, _: Any, args: Any, caught: bool) -> None:
        if caught:
            self.add_error(args[1])

    def _see_command(self, _: Any, __: Any, result: Any) -> None:
        self.add_error(result.exception)

    def _see_child(self, process: Any, _: Any, streams: Any) -> None:
        if not process.returncode or not (error := streams[1]):
            return
        text = error if isinstance(error, str) else error.decode(errors="replace")
        lines = [line for line in text.splitlines() if line.startswith("ascent: ")]
        self.add(f"exit {process.returncode}", "\n".join(lines))


# What a run did.


def function_of(nodeid: str) -> str:
    return nodeid.partition("[")[0]


def file_of(function: str) -> str:
    return function.partition("::")[0]


@dataclass
class Run:
    """Which tests ran and what they provoked, put together from all processes."""

    files: set[str]  # test files that exist
    named: list[str] = field(default_factory=list)  # tests that were named: FILE::NAME
    visited: set[str] = field(default_factory=set)  # files that were collected
    skipped: set[str] = field(
        default_factory=set
    )  # files whose tests are not known: collection was skipped
    cases: dict[str, int] = field(default_factory=dict)  # of each function, as collected
    deselected: set[str] = field(default_factory=set)  # functions with cases that were deselected
    passed: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    provoked: Messages = field(default_factory=lambda: defaultdict(set))  # by cases that passed
    seen: set[str] = field(default_factory=set)  # by any
    crashed: bool = False

    @cached_property
    def whole(self) -> bool:
        return not (self.crashed or self.named or self.deselected or self.files - self.visited)

    @cached_property
    def finished(self) -> set[str]:
        """Functions all of whose cases ran and passed."""
        parts = {name.partition("::")[2].partition("[")[0] for name in self.named if "[" in name}
        return {
            function
            for function, count in self.cases.items()
            if len(self.passed[function]) == count
            and function not in self.deselected
            and function.partition("::")[2] not in parts
        }

    def is_gone(self, function: str) -> bool:
        """No test function has this name any more."""
        file = file_of(function)
        if file not in self.files:
            return True
        known = file in self.visited - self.skipped and not self.named
        return known and function not in self.cases and function not in self.deselected


@dataclass
class Comparison:
    changed: list[tuple[str, str]]  # before and now
    lost: list[str]
    new: list[str]
    undecided: list[str]  # their tests are gone or moved, and not every test file was run
    recorded: Messages

    @property
    def failed(self) -> bool:
        return bool(self.changed or self.lost)

    def lines(self) -> Iterator[str]:
        """For the end of a run: what is lost first, and what to do about it."""
        yield from self._list("changed", self.changed)
        yield from self._list("lost", [(message, "") for message in self.lost])
        yield from self._list("new", [("", message) for message in self.new])
        undecided = "gone with their tests, or moved with them: a run of every test file tells"
        yield from self._list(undecided, [(message, "") for message in self.undecided])
        if self.failed:
            before = [*self.lost, *(pair[0] for pair in self.changed)]
            files = {file_of(function) for message in before for function in self.recorded[message]}
            existing = " ".join(sorted(file for file in files if (TESTS.parent / file).exists()))
            yield f"If this is meant: pytest --record-messages {existing}".rstrip()
            yield f"Then read the diff of {FILE.name}: users lose every line that goes."

    def _list(self, title: str, pairs: list[tuple[str, str]]) -> Iterator[str]:
        if pairs:
            yield f"{len(pairs)} {title}:"
        for before, now in pairs[:MOST]:
            yield from show("-", before)
            yield from show("+", now)
            yield from (f"    {function}" for function in sorted(self.recorded.get(before, ()))[:3])
        if len(pairs) > MOST:
            yield f"  ... and {len(pairs) - MOST} more"


def show(sign: str, message: str) -> list[str]:
    first, *further = message.split("\n")
    return [f"  {sign} {first}", *(f"  {sign}   {line}" for line in further)] if message else []


def compile_entry(entry: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, entry.split(ANY))), re.DOTALL)


def find_entries(recorded: Messages, messages: set[str]) -> dict[str, str]:
    """The entry of the file that each message fits, where there is one."""
    found = {message: message for message in messages if message in recorded}
    for entry in recorded:
        if ANY in entry:
            pattern = compile_entry(entry)
            found |= {
                message: entry for message in messages - set(found) if pattern.fullmatch(message)
            }
    return found


def compare(recorded: Messages, run: Run) -> Comparison:
    entries = find_entries(recorded, run.seen)
    missing = {message: recorded[message] for message in recorded.keys() - set(entries.values())}
    lost = {message for message, functions in missing.items() if functions & run.finished}
    gone = {message for message, functions in missing.items() if all(map(run.is_gone, functions))}
    if run.whole:
        lost |= gone
    new = {message: run.provoked[message] for message in run.provoked.keys() - entries.keys()}
    changed = dict(pair_changed({message: recorded[message] for message in sorted(lost)}, new))
    return Comparison(
        sorted(changed.items()),
        lost=sorted(lost - changed.keys()),
        new=sorted(new.keys() - set(changed.values())),
        undecided=sorted(gone - lost),
        recorded=recorded,
    )


def pair_changed(lost: Messages, new: Messages) -> Iterator[tuple[str, str]]:
    """Lost messages with new ones that resemble them, of the same test if there is one."""
    free = dict(new)
    for entry, functions in lost.items():
        same_test = [message for message, others in free.items() if functions & others]
        similar = difflib.get_close_matches(entry, same_test or list(free)[:100], n=1, cutoff=0.5)
        if similar:
            del free[similar[0]]
            yield entry, similar[0]


def update(recorded: Messages, run: Run) -> Messages:
    """The file after this run: it knows nothing of functions that did not finish."""
    messages: Messages = defaultdict(set)
    for entry, functions in recorded.items():
        messages[entry] = {f for f in functions if f not in run.finished and not run.is_gone(f)}
    entries = find_entries(recorded, set(run.provoked))
    for message, functions in run.provoked.items():
        messages[entries.get(message, message)] |= functions
    return {entry: functions for entry, functions in messages.items() if functions}


# The file: a message, its further lines after "  | ", its test functions by file after a tab, a blank line.


def read_messages(path: Path) -> Messages:
    messages: Messages = {}
    text = path.read_text(encoding="utf-8").removeprefix(HEAD) if path.exists() else ""
    for record in text.strip("\n").split("\n\n"):
        lines = [line for line in record.split("\n") if line and not line.startswith("#")]
        message = [line.removeprefix("  |").removeprefix(" ") for line in lines if line[0] != "\t"]
        tests = [line[1:].split(": ") for line in lines if line[0] == "\t"]
        if message:
            messages["\n".join(message)] = {
                f"{file}::{name}" for file, names in tests for name in names.split(", ")
            }
    return messages


def write_messages(messages: Messages, path: Path) -> None:
    records = [HEAD]
    for message in sorted(messages, key=lambda message: (message.partition(": ")[2], message)):
        first, *further = message.split("\n")
        tests = defaultdict(list)
        for function in sorted(messages[message]):
            file, _, name = function.partition("::")
            tests[file].append(name)
        lines = [first, *(f"  | {line}".rstrip() for line in further)]
        lines += [f"\t{file}: {', '.join(names)}" for file, names in tests.items()]
        records.append("\n".join(lines) + "\n")
    path.write_text("\n".join(records), encoding="utf-8")


# pytest's hooks. Of several processes, each sends what it saw with its reports, and one compares.


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-messages",
        action="store_true",
        help="write the messages that the tests provoke into tests/regression/messages.txt",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not config.option.collectonly:
        config.pluginmanager.register(Net(config), "net for messages")


class Net:
    def __init__(self, config: pytest.Config) -> None:
        files = {path.relative_to(TESTS.parent).as_posix() for path in TESTS.rglob("test_*.py")}
        self.config = config
        self.run = Run(files, named=[str(arg) for arg in config.args if "::" in str(arg)])
        self.recorder = Recorder(config.option.basetemp)
        self.comparison: Comparison | None = None
        self.written = ""

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.nodeid.endswith(".py"):
            self.run.visited.add(report.nodeid)
            if not report.passed:
                self.run.skipped.add(report.nodeid)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        collected = list(items)
        yield
        kept = set(items)
        for item in collected:
            if item not in kept and not item.get_closest_marker("learning"):
                self.run.deselected.add(function_of(item.nodeid))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.run.cases = dict(Counter(function_of(item.nodeid) for item in session.items))
        self.recorder.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        report = yield
        if report.when == "teardown":
            messages = self.recorder.take()
            report.messages = [] if is_drawn(item) else messages
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        function, run = function_of(report.nodeid), self.run
        if report.when == "call" and report.passed:
            run.passed[function].add(report.nodeid)
        if report.when == "teardown":
            if not report.passed:
                run.passed[function].discard(report.nodeid)
            for message in getattr(report, "messages", ()):
                run.seen.add(message)
                if report.nodeid in run.passed[function]:
                    run.provoked[message].add(function)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        found = getattr(node, "workeroutput", {}).get("messages")
        self.run.crashed |= bool(error) or not found
        if found:
            self.run.cases, visited, skipped, deselected = found
            self.run.visited |= set(visited)
            self.run.skipped |= set(skipped)
            self.run.deselected |= set(deselected)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.recorder.stop()
        run = self.run
        if hasattr(self.config, "workeroutput"):
            parts = list(run.visited), list(run.skipped), list(run.deselected)
            self.config.workeroutput["messages"] = [run.cases, *parts]
            return
        package = getattr(sys.modules.get("ascent"), "__file__", "")
        if package and not Path(package).is_relative_to(TESTS.parent):
            return  # a copy of the package that was broken on purpose
        recorded = read_messages(FILE)
        if self.config.option.record_messages:
            messages = update(recorded, run)
            write_messages(messages, FILE)
            gone, came = recorded.keys() - messages.keys(), messages.keys() - recorded.keys()
            self.written = (
                f"{len(messages)} messages in {FILE.name}: {len(came)} new, {len(gone)} removed"
            )
            return
        self.comparison = compare(recorded, run)
        if self.comparison.failed and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.written:
            terminalreporter.write_line(self.written)
        if self.comparison:
            lines = list(self.comparison.lines())
            if lines:
                terminalreporter.section("messages", red=self.comparison.failed)
            for line in lines:
                terminalreporter.write_line(line)


def is_drawn(item: pytest.Item) -> bool:
    """Whether its messages hold drawn values, or it is a study that is no part of the suite."""
    drawn = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return drawn or item.get_closest_marker("learning") is not None
