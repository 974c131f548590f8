"""Tools that a policy calls by writing `<calculator>7 * 8</calculator>`; it then reads `<result>56</result>`.

A turn with calls is answered by their results, in order; a turn without any is the policy's answer, and ends the
episode. A tool that raises, hangs, or is called with a tag that is not closed gives a result that says so
(`error: ...`) and is counted; it never ends a run. At most MOST_CALLS of a turn are answered: a policy that writes
nothing but calls must not hold up a step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from ascent.plugins import find_target
from ascent.records import Message, Prompt, Reply, Role
from ascent.sandbox.limits import Limits
from ascent.sandbox.programs import Sandbox, Sandboxing
from ascent.sandbox.timeouts import shown, within

BUILT_IN = {"python": "a program; what it prints", "calculator": "arithmetic", "search": "words; passages"}
MOST_CALLS = 64
Tool = Callable[[str], str]


class Failed(Exception):
    """A tool's failure, with the word under which it is counted."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class Python:
    """Runs a program in the sandbox, alone and from nothing: no call sees what an earlier one left."""

    def __init__(self, seconds: float, sandbox: Sandboxing, workers: int) -> None:
        limits = Limits(wall_seconds=seconds, test_seconds=seconds, cpu_seconds=max(1, round(seconds)))
        self._sandbox = Sandbox(workers=workers, limits=limits, sandbox=sandbox)
        self._seconds = seconds

    def __call__(self, source: str) -> str:
        done = self._sandbox.run(source.strip("\n"))
        if done.error == "time":
            raise Failed("timeout", f"the program was stopped after {self._seconds:g} s")
        if done.error is not None:
            raise Failed("raised", f"the program was stopped: {done.error}")
        if done.status != 0:
            raise Failed("raised", (done.stderr.strip() or f"exit status {done.status}").splitlines()[-1])
        return done.stdout.rstrip("\n")

    def close(self) -> None:
        self._sandbox.close()


class Tools:
    """`tools` are built-in names or `file.py:function` (text in, text out), each with `seconds` for a call. At most
    `characters` of a result are shown, in messages of `role` (some chat templates know no tool). `announce` puts a
    message before the prompt that says what there is."""

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
            raise ValueError(f"env tools: seconds={seconds}, characters={characters}, but both must be above 0")
        self.role, self.seconds, self.characters, self.announce = role, seconds, characters, announce
        self.tools: dict[str, Tool] = {}
        self._python: Python | None = None
        for use in tools:
            name = use.rpartition(":")[2]
            if name in self.tools:
                raise ValueError(f"env tools: two tools are called {name}; calls are told apart by name, so rename one")
            if use == "python":
                self._python = self.tools[name] = Python(seconds, sandbox, workers)
            elif use == "search":
                self.tools[name] = _search(corpus, results)
            else:
                self.tools[name] = _function(use)

    def __call__(self, prompt: Prompt) -> Calling:
        return Calling(prompt, self)

    def call(self, name: str, text: str) -> tuple[str, str]:
        """What a tool says, and by which word it is counted."""
        tool = self.tools[name]
        try:
            # The sandbox has a hard limit of its own, and waiting for a free worker is not the program's fault.
            said = tool(text) if tool is self._python else within(self.seconds, lambda: tool(text), name=f"tool-{name}")
        except Failed as failure:
            return f"error: {failure}", failure.kind
        except TimeoutError:
            return f"error: no answer within {self.seconds:g} s", "timeout"
        except BaseException as error:  # whatever it is, it is the policy's to read; SystemExit must not end the run
            return f"error: {shown(error)}", "raised"
        if not isinstance(said, str):
            return f"error: {name} returned a {type(said).__name__}, not text", "raised"
        cut = len(said) - self.characters
        return (f"{said[: self.characters]} ({cut} more characters)" if cut > 0 else said), "calls"

    def close(self) -> None:
        if self._python is not None:
            self._python.close()


def _search(corpus: str | None, results: int) -> Tool:
    from ascent.envs.search import Search

    if corpus is None:
        raise ValueError("env tools: search needs the option corpus, a file with one passage a line")
    return Search(corpus, results=results)


def _function(use: str) -> Tool:
    found = find_target("tool", use, dict.fromkeys(BUILT_IN, "ascent.envs.calculator:calculate"))
    if not callable(found):
        raise ValueError(f"tool {use} is a {type(found).__name__}, not a function of a text")
    tool: Tool = found
    return tool


class Calling:
    """One rollout's tools."""

    def __init__(self, prompt: Prompt, tools: Tools) -> None:
        self.prompt, self.tools = prompt, tools
        self._open = re.compile(f"<({'|'.join(map(re.escape, tools.tools))})>")

    def first(self) -> Prompt:
        if not self.tools.announce:
            return self.prompt
        known = [f"<{name}>...</{name}> ({BUILT_IN.get(name, 'text in, text out')})" for name in self.tools.tools]
        words = "You can call tools: " + ", ".join(known) + ". End your turn after a call and read its <result>."
        head, *rest = self.prompt.messages
        if head.role == "system":
            messages = (Message("system", f"{head.content}\n\n{words}"), *rest)
        else:
            messages = (Message("system", f"{words}\n"), head, *rest)
        return Prompt(self.prompt.id, messages, self.prompt.answer, self.prompt.info)

    def reply(self, text: str) -> Reply:
        calls, rest = self._calls(text)
        broken = self._open.findall(rest)
        if not calls and not broken:
            return Reply(None)
        counts: Counter[str] = Counter()
        results = []
        for name, inside in calls[:MOST_CALLS]:
            said, kind = self.tools.call(name, inside)
            results.append(said)
            counts.update({f"{name}/calls", f"{name}/{kind}"})
        for name in broken[: MOST_CALLS - len(results)]:
            results.append(f"error: <{name}> is not closed by </{name}>")
            counts.update({f"{name}/malformed"})
        left = [*(name for name, _ in calls), *broken][len(results) :]
        if left:
            results.append(f"error: {len(left)} more calls were not answered; a turn has at most {MOST_CALLS}")
            counts.update(f"{name}/left_out" for name in left)
        return Reply(Message(self.tools.role, "\n".join(f"<result>{said}</result>" for said in results)), counts=counts)

    def _calls(self, text: str) -> tuple[list[tuple[str, str]], str]:
        """The names and insides of all calls, and the text without them. A name that is not closed once is not looked
        for again: the time is linear in the text."""
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
