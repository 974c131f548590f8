"""The code inside the sandbox that runs the program. It is NOT trusted.

The program shares this process and can manipulate it; that gains nothing, because all this process can say is "the
result of that call is x", and expected results never come in here. `tests` mode is the other side: it runs hidden test
code in a sandbox of its own, with proxies for the program's functions that call the first sandbox.

Frames are a 4-byte length and JSON, on descriptors that were stdin and stdout. The worker passes this file's source,
after that of values.py and without its import, to `python -c`: nothing of the package is accessible inside.
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
    """Frames over two descriptors that are separate from the program's stdin and stdout."""

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
        data = b""
        while len(data) < count:
            chunk = os.read(self._in, count - len(data))
            if not chunk:
                os._exit(0)
            data += chunk
        return data


def _compile(source: str, name: str) -> Any:
    """Without this file's `from __future__`, which would allow undefined names in annotations."""
    return compile(source, name, "exec", dont_inherit=True)


def _module(name: str) -> dict[str, Any]:
    """The globals of a new module in sys.modules, where dataclasses look for it."""
    sys.modules[name] = type(sys)(name)
    names: dict[str, Any] = sys.modules[name].__dict__
    names["__builtins__"] = builtins
    return names


class Program:
    """A program's names, called from outside; what is not plain data stays here and is sent as a handle."""

    def __init__(self) -> None:
        self._names = _module("program")
        self._objects: list[Any] = []
        self._source = ""

    def load(self, message: dict[str, Any]) -> dict[str, Any]:
        self._source, prelude = message["source"], message["prelude"]
        if message["define"]:
            if prelude and self._source.lstrip("\r\n")[:1] in (
                " ",
                "\t",
            ):  # the body of the prelude's function
                self._source = prelude + self._source
            elif prelude:
                exec(_compile(prelude, "<given>"), self._names)
            exec(_compile(self._source, "<program>"), self._names)
        return {"value": None}

    def name(self, message: dict[str, Any]) -> dict[str, Any]:
        """A function of the program, or a method of its `Solution` class, as on LeetCode."""
        name = message["name"]
        if name in self._names:
            return {"value": self._keep(self._names[name])}
        if "Solution" in self._names:
            return {"value": self._keep(getattr(self._names["Solution"](), name))}
        raise NameError(f"the program defines no {name}")

    def get(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"value": encode(getattr(self._objects[message["of"]], message["name"]), self._keep)}

    def assign(self, message: dict[str, Any]) -> dict[str, Any]:
        setattr(
            self._objects[message["of"]],
            message["name"],
            decode(message["value"], self._objects.__getitem__),
        )
        return {"value": None}

    def call(self, message: dict[str, Any]) -> dict[str, Any]:
        args = [decode(arg, self._objects.__getitem__) for arg in message["args"]]
        kwargs = {
            key: decode(arg, self._objects.__getitem__) for key, arg in message["kwargs"].items()
        }
        value = encode(self._objects[message["of"]](*args, **kwargs), self._keep)
        # Arguments changed in place are part of the reply.
        changed = {
            index: after
            for index, (before, arg) in enumerate(zip(message["args"], args, strict=True))
            if isinstance(arg, list | dict | set) and (after := encode(arg, self._keep)) != before
        }
        return {"value": value, "changed": changed}

    def run(self, message: dict[str, Any]) -> dict[str, Any]:
        """Run the program as a script in a child process."""
        stdin_file, stdout_file, stderr_file = (_anonymous_file() for _ in range(3))
        with os.fdopen(os.dup(stdin_file), "wb") as pipe:
            pipe.write(message["stdin"].encode())
        os.lseek(stdin_file, 0, os.SEEK_SET)
        child = os.fork()
        if child == 0:
            for target, source in enumerate((stdin_file, stdout_file, stderr_file)):
                os.dup2(source, target)
            _script(self._source)
        _, status = os.waitpid(child, 0)
        max_bytes = message["max_bytes"]
        # Bytes that are not UTF-8 become something that equals no text.
        text, error = (
            os.pread(file, max_bytes + 1, 0).decode("utf-8", "surrogateescape")
            for file in (stdout_file, stderr_file)
        )
        for file in (stdin_file, stdout_file, stderr_file):
            os.close(file)
        return {
            "value": {
                "status": os.waitstatus_to_exitcode(status),
                "stdout": text,
                "stderr": error[-2000:],
            }
        }

    def _keep(self, value: Any) -> dict[str, int]:
        self._objects.append(value)
        return {"h": len(self._objects) - 1}


def _anonymous_file() -> int:
    """An open, unlinked file in the private folder, whose size limit includes it."""
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
        exec(_compile(source, "<program>"), _module("__main__"))
    except SystemExit as exit_:
        status = 0 if exit_.code is None else exit_.code if isinstance(exit_.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    try:  # as the interpreter exits: output may be written by a thread, or at exit
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.__stdout__, sys.stderr):
            # A program may have replaced it by anything.
            if stream is not None and not getattr(stream, "closed", False):
                stream.flush()
    finally:
        os._exit(status & 255)


class Remote:
    # A proxy in the tests for a function or object of the program. It forwards calls and attributes only: comparisons
    # are not forwarded, so an object that claims to equal everything equals nothing. No docstring: __doc__ is the
    # program's.
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
        raise AssertionError("the value is not plain data, so it equals nothing")

    def __bool__(self) -> bool:
        raise AssertionError("the value is not plain data, so it is neither true nor false")

    def _handle(self) -> int:
        return int(self._of)


class Unsupported(BaseException):
    """A test passes an argument that cannot be encoded. BaseException, so that no test's `except` catches it."""


def _outgoing(value: Any) -> Any:
    def other(left: Any) -> Any:
        if isinstance(left, Remote):
            return {"h": left._handle()}
        raise Unsupported(
            f"a test passes a {type(left).__name__} to the program; only plain data can be sent"
        )

    return encode(value, other)


class Tests:
    """Hidden test code. Its undefined names are the program's."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._names = _module("tests")

    def setup(self, message: dict[str, Any]) -> dict[str, Any]:
        for name in message["names"]:
            self._names[name] = _ProgramName(self._ask, name)
        exec(_compile(message["source"], "<tests>"), self._names)
        return {"value": None}

    def check(self, message: dict[str, Any]) -> dict[str, Any]:
        exec(_compile(message["source"], "<tests>"), self._names)
        return {"value": True}

    def _ask(self, message: dict[str, Any], args: tuple[Any, ...] = ()) -> Any:
        self._channel.write({"ask": message})
        reply = self._channel.read()
        if "error" in reply:
            raise _rebuild_exception(*reply["error"])
        value = decode(reply["value"], self._remote)
        if value is None:
            # Changed arguments are copied back only if the call returned None: a program that empties its input and
            # returns it would otherwise pass `assert f(xs) == sorted(xs)`.
            for index, after in reply.get("changed", {}).items():
                _update(args[int(index)], decode(after, self._remote))
        return value

    def _remote(self, of: int) -> Remote:
        return Remote(self._ask, of)


class _ProgramName(Remote):
    # A name of the program, looked up on first use.
    __slots__ = ("_name",)
    __doc__ = Remote.__doc__

    def __init__(self, ask: Callable[[dict[str, Any]], Any], name: str) -> None:
        super().__init__(ask, -1)
        object.__setattr__(self, "_name", name)

    def _handle(self) -> int:
        if self._of < 0:
            data = self._ask({"op": "name", "name": self._name})
            object.__setattr__(self, "_of", object.__getattribute__(data, "_of"))
        return int(self._of)


def _update(target: Any, after: Any) -> None:
    if isinstance(target, list):
        target[:] = after
    else:
        target.clear()
        target.update(after)


_CONTROL_EXCEPTIONS = (AssertionError, StopIteration, StopAsyncIteration)


def _rebuild_exception(kind: str, text: str) -> Exception:
    """The program's exception as the built-in type of that name, so that tests can expect it.

    Not an AssertionError or StopIteration, which have a meaning for the calling code.
    """
    data = getattr(builtins, kind, None)
    if (
        isinstance(data, type)
        and issubclass(data, Exception)
        and not issubclass(data, _CONTROL_EXCEPTIONS)
    ):
        try:
            return data(text)
        except TypeError:  # such as UnicodeDecodeError, with more arguments
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
    except Exception as another:  # str() of an integer of 5000 digits raises
        return f"no message: {type(another).__name__}"


def main() -> None:
    limits = json.loads(sys.argv[2])
    _limit(limits)
    # Normally set by the module `site`, which is not loaded here.
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    channel = Channel()
    side = Program() if sys.argv[1] == "program" else Tests(channel)
    sys.argv[:] = ["program.py"]  # this file's own arguments are none of the program's
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
            # SystemExit and KeyboardInterrupt too: a program that exits has not replied.
            channel.write({"error": [type(error).__name__, _message(error)]})


if __name__ == "__main__":
    main()
