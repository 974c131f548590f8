"""What runs inside the sandbox, in front of the program. It is part of what is NOT trusted.

The program shares this process and can do to it as it likes; that gains nothing, because all this process can say is
"the answer to that call is x", and what the answer should be never comes in here. `tests` mode is the other side: it
runs hidden test code in a sandbox of its own, where the program's functions are stand-ins that ask the first sandbox.

Frames are a 4-byte length and JSON, on descriptors that were stdin and stdout. The worker sends this file's text,
behind that of values.py and without its import, with `python -c`: nothing of the package is in reach in there.
"""

from __future__ import annotations

import atexit
import builtins
import json
import os
import resource
import struct
import sys
from collections.abc import Callable

from ascent.sandbox.values import NotPlain, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

MEGABYTE = 1 << 20


class Channel:
    """Frames over two descriptors that the program's own stdin and stdout do not share."""

    def __init__(self) -> None:
        self._in, self._out = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)

    def read(self) -> dict[str, Any]:
        (length,) = struct.unpack(">I", self._exactly(4))
        frame: dict[str, Any] = json.loads(self._exactly(length))
        return frame

    def write(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        view = memoryview(struct.pack(">I", len(data)) + data)
        while view:
            view = view[os.write(self._out, view) :]

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            piece = os.read(self._in, count - len(found))
            if not piece:
                os._exit(0)
            found += piece
        return found


def _compiled(source: str, name: str) -> Any:
    """Not with this file's own `from __future__`, which would let annotations name what nobody defines."""
    return compile(source, name, "exec", dont_inherit=True)


def _module(name: str) -> dict[str, Any]:
    """The names of a new module that can be found by its own: dataclasses look for it."""
    sys.modules[name] = type(sys)(name)
    names: dict[str, Any] = sys.modules[name].__dict__
    names["__builtins__"] = builtins
    return names


class Program:
    """A program's names, called from outside; what is no plain data stays here and goes out as a number."""

    def __init__(self) -> None:
        self._names = _module("program")
        self._kept: list[Any] = []
        self._source = ""

    def load(self, message: dict[str, Any]) -> dict[str, Any]:
        self._source, prelude = message["source"], message["prelude"]
        if message["define"]:
            if prelude and self._source.lstrip("\r\n")[:1] in (" ", "\t"):  # the rest of a function that it begins
                self._source = prelude + self._source
            elif prelude:
                exec(_compiled(prelude, "<given>"), self._names)
            exec(_compiled(self._source, "<program>"), self._names)
        return {"value": None}

    def name(self, message: dict[str, Any]) -> dict[str, Any]:
        """A function of the program, or a method of its `Solution`, as LeetCode has it."""
        name = message["name"]
        if name in self._names:
            return {"value": self._keep(self._names[name])}
        if "Solution" in self._names:
            return {"value": self._keep(getattr(self._names["Solution"](), name))}
        raise NameError(f"the program defines no {name}")

    def get(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"value": encode(getattr(self._kept[message["of"]], message["name"]), self._keep)}

    def assign(self, message: dict[str, Any]) -> dict[str, Any]:
        setattr(self._kept[message["of"]], message["name"], decode(message["value"], self._kept.__getitem__))
        return {"value": None}

    def call(self, message: dict[str, Any]) -> dict[str, Any]:
        args = [decode(arg, self._kept.__getitem__) for arg in message["args"]]
        kwargs = {key: decode(arg, self._kept.__getitem__) for key, arg in message["kwargs"].items()}
        value = encode(self._kept[message["of"]](*args, **kwargs), self._keep)
        # Arguments that the function changed in place are part of its answer.
        changed = {
            place: after
            for place, (before, arg) in enumerate(zip(message["args"], args, strict=True))
            if isinstance(arg, list | dict | set) and (after := encode(arg, self._keep)) != before
        }
        return {"value": value, "changed": changed}

    def run(self, message: dict[str, Any]) -> dict[str, Any]:
        """The whole program as a script in a child process, on a given standard input."""
        given, printed, complained = (_nameless() for _ in range(3))
        with os.fdopen(os.dup(given), "wb") as pipe:
            pipe.write(message["stdin"].encode())
        os.lseek(given, 0, os.SEEK_SET)
        child = os.fork()
        if child == 0:
            for target, source in enumerate((given, printed, complained)):
                os.dup2(source, target)
            _script(self._source)
        _, status = os.waitpid(child, 0)
        most = message["most"]
        # Bytes that are no UTF-8 stay something that equals no text.
        text, error = (os.pread(file, most + 1, 0).decode("utf-8", "surrogateescape") for file in (printed, complained))
        for file in (given, printed, complained):
            os.close(file)
        return {"value": {"status": os.waitstatus_to_exitcode(status), "stdout": text, "stderr": error[-2000:]}}

    def _keep(self, value: Any) -> dict[str, int]:
        self._kept.append(value)
        return {"h": len(self._kept) - 1}


def _nameless() -> int:
    """An open file in the private folder, whose size counts against that folder's."""
    path = os.path.join(os.environ["TMPDIR"], os.urandom(8).hex())
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(path)
    return descriptor


def _script(source: str) -> NoReturn:
    status = 0
    sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    try:
        exec(_compiled(source, "<program>"), _module("__main__"))
    except SystemExit as wanted:
        status = 0 if wanted.code is None else wanted.code if isinstance(wanted.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    try:  # as the interpreter ends: fast output is often written by a thread, or at exit
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.__stdout__, sys.stderr):
            # A program may have put anything in its place.
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
    finally:
        os._exit(status & 255)


class Remote:
    # A function or object of the program, seen from the tests. It answers calls and attributes, and nothing else: no
    # comparison is handed over, so an object that claims to equal everything equals nothing. No docstring: tests that
    # ask for one mean the program's.
    __slots__ = ("_ask", "_of")
    __hash__ = None  # type: ignore[assignment]
    __doc__ = property(lambda self: self.__getattr__("__doc__"))

    def __init__(self, ask: Callable[[dict[str, Any]], Any], of: int) -> None:
        object.__setattr__(self, "_ask", ask)
        object.__setattr__(self, "_of", of)

    def __getattr__(self, name: str) -> Any:
        return self._ask({"op": "get", "of": self._handle(), "name": name})

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask({"op": "assign", "of": self._handle(), "name": name, "value": _outgoing(value)})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        message = {"op": "call", "of": self._handle(), "args": [_outgoing(arg) for arg in args]}
        message["kwargs"] = {key: _outgoing(arg) for key, arg in kwargs.items()}
        return self._ask(message, args)

    def __eq__(self, other: object) -> bool:
        raise AssertionError("the answer is no plain data, so it equals nothing")

    def __bool__(self) -> bool:
        raise AssertionError("the answer is no plain data, so it is neither true nor false")

    def _handle(self) -> int:
        return int(self._of)


class Unsupported(BaseException):
    """A test hands over what cannot travel (a function, an open file); BaseException: no test's `except` eats it."""


def _outgoing(value: Any) -> Any:
    def other(left: Any) -> Any:
        if isinstance(left, Remote):
            return {"h": left._handle()}
        raise Unsupported(f"a test passes a {type(left).__name__} to the program; only plain data can travel")

    return encode(value, other)


class Tests:
    """Hidden test code. The names it uses and nobody defines are the program's."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._names = _module("tests")

    def setup(self, message: dict[str, Any]) -> dict[str, Any]:
        for name in message["names"]:
            self._names[name] = _Named(self._ask, name)
        exec(_compiled(message["source"], "<tests>"), self._names)
        return {"value": None}

    def check(self, message: dict[str, Any]) -> dict[str, Any]:
        exec(_compiled(message["source"], "<tests>"), self._names)
        return {"value": True}

    def _ask(self, message: dict[str, Any], args: tuple[Any, ...] = ()) -> Any:
        self._channel.write({"ask": message})
        reply = self._channel.read()
        if "error" in reply:
            raise _revived(*reply["error"])
        value = decode(reply["value"], self._remote)
        if value is None:
            # A call is judged by its value, or by what it did to its arguments, never by both: a program that empties
            # the tests' own input and returns it would pass `assert f(xs) == sorted(xs)`.
            for place, after in reply.get("changed", {}).items():
                _update(args[int(place)], decode(after, self._remote))
        return value

    def _remote(self, of: int) -> Remote:
        return Remote(self._ask, of)


class _Named(Remote):
    # A name of the program's, looked up when first used.
    __slots__ = ("_name",)
    __doc__ = Remote.__doc__

    def __init__(self, ask: Callable[[dict[str, Any]], Any], name: str) -> None:
        super().__init__(ask, -1)
        object.__setattr__(self, "_name", name)

    def _handle(self) -> int:
        if self._of < 0:
            found = self._ask({"op": "name", "name": self._name})
            object.__setattr__(self, "_of", object.__getattribute__(found, "_of"))
        return int(self._of)


def _update(target: Any, after: Any) -> None:
    if isinstance(target, list):
        target[:] = after
    else:
        target.clear()
        target.update(after)


_MEANINGFUL = (AssertionError, StopIteration, StopAsyncIteration)


def _revived(kind: str, text: str) -> Exception:
    """The program's exception, as the built-in type of that name, so that tests may expect it.

    Not one that means something to the code around a call: an assertion's, or the end of `map` and `zip`.
    """
    found = getattr(builtins, kind, None)
    if isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, _MEANINGFUL):
        try:
            return found(text)
        except TypeError:  # UnicodeDecodeError and its like want more arguments
            return RuntimeError(f"{kind}: {text}")
    return RuntimeError(f"{kind}: {text}")


def _limit(limits: dict[str, Any]) -> None:
    sizes = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 128,
        resource.RLIMIT_SIGPENDING: 128,
        resource.RLIMIT_FSIZE: int(limits["file_mb"] * MEGABYTE),
        resource.RLIMIT_AS: int(limits["memory_mb"] * MEGABYTE),
        resource.RLIMIT_NPROC: int(limits["processes"]),
    }
    for kind, size in sizes.items():
        resource.setrlimit(kind, (size, size))
    cpu = int(limits["cpu_seconds"])
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))


def _message(error: BaseException) -> str:
    try:
        return str(error)[:500]
    except Exception as another:  # an exception about an integer of 5000 digits cannot be written down
        return f"no message: {type(another).__name__}"


def main() -> None:
    limits = json.loads(sys.argv[2])
    _limit(limits)
    # Which the module `site`, left out here, would give every program.
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    channel = Channel()
    side = Program() if sys.argv[1] == "program" else Tests(channel)
    channel.write({"ready": True})
    while True:
        message = channel.read()
        try:
            reply = getattr(side, message["op"])(message)
            channel.write(reply)
        except Unsupported as error:
            channel.write({"unsupported": str(error)})
        except NotPlain as error:
            channel.write({"error": ["TypeError", str(error)]})
        except BaseException as error:
            # SystemExit and KeyboardInterrupt too: a program that leaves has not answered.
            channel.write({"error": [type(error).__name__, _message(error)]})


if __name__ == "__main__":
    main()
