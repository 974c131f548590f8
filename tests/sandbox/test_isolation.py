"""What stands around a program, and what is said where it cannot stand."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from ascent.sandbox import isolation
from ascent.sandbox.isolation import Interpreter, bwrap_command, environment, require_bubblewrap
from ascent.sandbox.limits import Limits
from ascent.sandbox.programs import Sandbox
from tests.sandbox.hostile import hostile


def test_without_bubblewrap_the_package_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match=r"apt-get install bubblewrap.*`sandbox: none`"):
        require_bubblewrap()


def test_an_old_bubblewrap_is_refused(monkeypatch, tmp_path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho bubblewrap 0.6.1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ValueError, match=r"bubblewrap 0\.6\.1 is too old"):
        require_bubblewrap()


def test_the_command_line_leaves_nothing_in():
    words = bwrap_command(
        "bwrap", Interpreter.current(), Limits(), descriptors={"seccomp": 5}, inner=["-c", "pass"]
    )
    for word in (
        "--unshare-user",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--clearenv",
        "--die-with-parent",
    ):
        assert word in words
    bound = [
        words[n + 1]
        for n, word in enumerate(words)
        if word in ("--ro-bind", "--bind", "--ro-bind-try")
    ]
    devices = {words[n + 1] for n, word in enumerate(words) if word == "--dev-bind"}
    assert (
        "--bind" not in words
        and "--dev" not in words
        and devices == {"/dev/null", "/dev/random", "/dev/urandom"}
    )
    assert "/" not in bound and not any(
        name.startswith(("/home", "/proc", "/sys", "/dev")) for name in bound
    )
    assert {"--seccomp", "5"} < set(words)
    # The root is closed last, when everything has its place in it.
    closed = [words[n + 1] for n, word in enumerate(words) if word == "--remount-ro"]
    assert closed[-1] == "/" and words.index("--chdir") > len(words) - words[::-1].index(
        "--remount-ro"
    )


def test_only_files_that_the_interpreter_loads_are_bound():
    """Whole folders are the standard library's alone: /usr/lib would bring packages and set-user-id programs."""
    interpreter = Interpreter.current()
    words = bwrap_command("bwrap", interpreter, Limits(), descriptors={}, inner=["-c", "pass"])
    pairs = [(words[n + 1], words[n + 2]) for n, word in enumerate(words) if word == "--ro-bind"]
    folders = [Path(name) for name, _ in pairs if Path(name).is_dir()]
    assert folders == [Path(os.__file__).resolve().parent]
    assert any(Path(name).name.startswith(("libc.", "ld-musl")) for _, name in pairs)
    assert not any(Path(name).stat().st_mode & 0o6000 for name, _ in pairs)
    for folder in folders:
        assert not [
            path for path in folder.rglob("*") if path.is_file() and path.stat().st_mode & 0o6000
        ]
        for packages in folder.rglob("*-packages"):
            assert str(packages) in [
                words[n + 1] for n, word in enumerate(words) if word == "--tmpfs"
            ]


@pytest.mark.skipif(
    shutil.which("bwrap") is None and os.environ.get("CI") != "true",
    reason="the package bubblewrap is not installed (with CI=true this is a failure)",
)
def test_no_package_and_no_set_user_id_file_is_visible():
    """With time to walk through everything, which a hostile program of test_programs.py does not get."""
    sandbox = Sandbox(workers=1, limits=Limits(wall_seconds=60, test_seconds=60, cpu_seconds=60))
    output = sandbox.run(hostile({})["packages_and_privileges"])
    sandbox.close()
    assert (output.status, output.stdout, output.stderr) == (0, "", "")


def test_an_interpreter_that_cannot_say_what_it_loads(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    with pytest.raises(ValueError, match="there is no"):
        Interpreter.current()
    fake.write_text("#!/bin/sh\necho broken >&2; exit 1\n")
    fake.chmod(0o755)
    with pytest.raises(ValueError, match="could not list its modules: broken"):
        Interpreter.current()


def test_the_environment_holds_nothing_of_ours():
    assert set(environment("/x")) == {
        "HOME",
        "TMPDIR",
        "PATH",
        "LANG",
        "PYTHONHASHSEED",
        "MALLOC_ARENA_MAX",
    }


def test_who_can_walk_to_a_file(tmp_path):
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o001)
    file = tmp_path / "closed" / "file"
    file.parent.mkdir(mode=0o755)
    file.write_text("x")
    file.chmod(0o644)
    assert isolation._can_read(file, 61184)
    file.parent.chmod(0o700)
    assert not isolation._can_read(file, 61184)


@pytest.mark.parametrize(
    "bad", [{"wall_seconds": float("inf")}, {"memory_mb": 1}, {"processes": 2}, {"cpu_seconds": -1}]
)
def test_limits_that_are_none(bad):
    with pytest.raises(ValueError):
        Limits(**bad)
