"""Tools that a policy calls by writing `<calculator>7 * 8</calculator>`; it then reads `<result>56</result>`.

The results of a turn's calls are the next message; a turn without calls is the answer and ends the episode. A tool that
raises or hangs, and a tag that is not closed, give an `error: ...` result, which is counted; they never end a run. At
most MAX_CALLS calls of a turn are answered.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from ascent.plugins import find_target
from ascent.records import Message, Prompt, Reply, Role
from ascent.sandbox.limits import Limits
from ascent.sandbox.programs import Sandbox, Sandboxing
from ascent.sandbox.timeouts import error_summary, within

BUILT_IN = {
    "python": "a program; what it prints",
    "calculator": "arithmetic",
    "search": "words; passages",
}
MAX_CALLS = 64
Tool = Callable[[str], str]


class ToolError(Exception):
    """A tool failed; `kind` is the name of its counter."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class Python:
    """Runs a program in a fresh sandbox."""

    def __init__(self, seconds: float, sandbox: Sandboxing, workers: int) -> None:
        limits = Limits(
            wall_seconds=seconds, test_seconds=seconds, cpu_seconds=max(1, round(seconds))
        )
        self._sandbox = Sandbox(workers=workers, limits=limits, sandbox=sandbox)
        self._seconds = seconds

    def __call__(self, source: str) -> str:
        done = self._sandbox.run(source.strip("\n"))
        if done.error == "time":
            raise ToolError("timeout", f"the program was stopped after {self._seconds:g} s")
        if done.error is not None:
            raise ToolError("raised", f"the program was stopped: {done.error}")
        if done.status != 0:
            raise ToolError(
                "raised", (done.stderr.strip() or f"exit status {done.status}").splitlines()[-1]
            )
        return done.stdout.rstrip("\n")

    def close(self) -> None:
        self._sandbox.close()


class Tools:
    """`tools` are built-in names or `file.py:function` (text in, text out); `seconds` limits a call. A result
    is truncated to `characters` and sent in a message of `role` (some chat templates have no tool role). `announce`
    lists the tools in the system message."""

    def __init__(
        self,
        *,
        tools: Sequence[str],
        role: Role = "tool",
        seconds: float = 10.0,
        characters: int = 2000,
        announce: bool = True,
        sandbox: Sandboxing = "bubblewrap",
        workers: int = 0,
        corpus: str | None = None,
        results: int = 3,
    ) -> None:
        if not tools:
            raise ValueError("env tools: tools is empty; name at least one, such as calculator")
        if not seconds > 0 or characters < 1:
            raise ValueError(
                f"env tools: seconds={seconds}, characters={characters}, but both must be above 0"
            )
        self.role, self.seconds, self.characters, self.announce = (
            role,
            seconds,
            characters,
            announce,
        )
        self.tools: dict[str, Tool] = {}
        self._python: Python | None = None
        for use in tools:
            name = use.rpartition(":")[2]
            if name in self.tools:
                raise ValueError(f"env tools: two tools are called {name}; rename one")
            if use == "python":
                self._python = self.tools[name] = Python(seconds, sandbox, workers)
            elif use == "search":
                self.tools[name] = _make_search(corpus, results)
            else:
                self.tools[name] = _find_function(use)

    def __call__(self, prompt: Prompt) -> ToolEpisode:
        return ToolEpisode(prompt, self)

    def call(self, name: str, text: str) -> tuple[str, str]:
        """The result of a call, and the name of its counter."""
        tool = self.tools[name]
        try:
            # The sandbox has its own limit, which does not count the wait for a free worker.
            result = (
                tool(text)
                if tool is self._python
                else within(self.seconds, lambda: tool(text), name=f"tool-{name}")
            )
        except ToolError as failure:
            return f"error: {failure}", failure.kind
        except TimeoutError:
            return f"error: no answer within {self.seconds:g} s", "timeout"
        except BaseException as error:  # SystemExit included: a tool must not end the run
            return f"error: {error_summary(error)}", "raised"
        if not isinstance(result, str):
            return f"error: {name} returned a {type(result).__name__}, not text", "raised"
        excess = len(result) - self.characters
        return (
            f"{result[: self.characters]} ({excess} more characters)" if excess > 0 else result
        ), "calls"

    def close(self) -> None:
        if self._python is not None:
            self._python.close()


def _make_search(corpus: str | None, results: int) -> Tool:
    from ascent.envs.search import Search

    if corpus is None:
        raise ValueError(
            "env tools: search needs the option corpus, a file with one passage per line"
        )
    return Search(corpus, results=results)


def _find_function(use: str) -> Tool:
    found = find_target("tool", use, dict.fromkeys(BUILT_IN, "ascent.envs.calculator:calculate"))
    if not callable(found):
        raise ValueError(f"tool {use} is a {type(found).__name__}, not a function of a text")
    tool: Tool = found
    return tool


class ToolEpisode:
    """The tools of one rollout."""

    def __init__(self, prompt: Prompt, tools: Tools) -> None:
        self.prompt, self.tools = prompt, tools
        self._open = re.compile(f"<({'|'.join(map(re.escape, tools.tools))})>")

    def first(self) -> Prompt:
        if not self.tools.announce:
            return self.prompt
        known = [
            f"<{name}>...</{name}> ({BUILT_IN.get(name, 'text in, text out')})"
            for name in self.tools.tools
        ]
        text = (
            "You can call tools: "
            + ", ".join(known)
            + ". End your turn after a call and read its <result>."
        )
        head, *rest = self.prompt.messages
        if head.role == "system":
            messages = (Message("system", f"{head.content}\n\n{text}"), *rest)
        else:
            messages = (Message("system", f"{text}\n"), head, *rest)
        return Prompt(self.prompt.id, messages, self.prompt.answer, self.prompt.info)

    def reply(self, text: str) -> Reply:
        calls, rest = self._parse_calls(text)
        unclosed = self._open.findall(rest)
        if not calls and not unclosed:
            return Reply(None)
        counts: Counter[str] = Counter()
        results = []
        for name, argument in calls[:MAX_CALLS]:
            result, kind = self.tools.call(name, argument)
            results.append(result)
            counts.update({f"{name}/calls", f"{name}/{kind}"})
        for name in unclosed[: MAX_CALLS - len(results)]:
            results.append(f"error: <{name}> is not closed by </{name}>")
            counts.update({f"{name}/malformed"})
        unanswered = [*(name for name, _ in calls), *unclosed][len(results) :]
        if unanswered:
            results.append(
                f"error: {len(unanswered)} more calls were not answered; a turn has at most {MAX_CALLS}"
            )
            counts.update(f"{name}/left_out" for name in unanswered)
        return Reply(
            Message(self.tools.role, "\n".join(f"<result>{result}</result>" for result in results)),
            counts=counts,
        )

    def _parse_calls(self, text: str) -> tuple[list[tuple[str, str]], str]:
        """(name, argument) of all calls, and the text without them. A name that is not closed is searched once,
        so the time is linear in the text."""
        calls, rest, place = [], [], 0
        unclosed: set[str] = set()
        for tag in self._open.finditer(text):
            name = tag[1]
            if tag.start() < place or name in unclosed:
                continue
            end = text.find(f"</{name}>", tag.end())
            if end < 0:
                unclosed.add(name)
                continue
            calls.append((name, text[tag.end() : end]))
            rest.append(text[place : tag.start()])
            place = end + len(f"</{name}>")
        return calls, "".join([*rest, text[place:]])
