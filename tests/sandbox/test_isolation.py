"""What stands around a program, and what is said where it cannot stand."""

import os
from pathlib import Path

import pytest

from ascent.sandbox import isolation
from ascent.sandbox.isolation import Interpreter, command, environment, require_bubblewrap
from ascent.sandbox.limits import Limits


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
    words = command("bwrap", Interpreter.mine(), Limits(), filter_fd=5, info_fd=6, inner=["-c", "pass"])
    for word in (
        "--unshare-user",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--clearenv",
        "--die-with-parent",
    ):
        assert word in words
    bound = [words[n + 1] for n, word in enumerate(words) if word in ("--ro-bind", "--bind", "--ro-bind-try")]
    assert "--bind" not in words and "--dev-bind" not in words
    assert "/" not in bound and not any(name.startswith(("/home", "/proc", "/sys")) for name in bound)
    # The root is closed last, when everything has its place in it.
    assert words.index("--remount-ro") < words.index("--chdir")
    assert words[words.index("--remount-ro", words.index("--remount-ro") + 1) + 1] == "/"


def test_the_environment_holds_nothing_of_ours():
    assert set(environment("/x")) == {"HOME", "TMPDIR", "PATH", "LANG", "PYTHONHASHSEED"}


def test_who_can_walk_to_a_file(tmp_path):
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o001)
    file = tmp_path / "closed" / "file"
    file.parent.mkdir(mode=0o755)
    file.write_text("x")
    file.chmod(0o644)
    assert isolation._reaches(file, 61184)
    file.parent.chmod(0o700)
    assert not isolation._reaches(file, 61184)


@pytest.mark.parametrize(
    "bad", [{"wall_seconds": float("inf")}, {"memory_mb": 1}, {"processes": 2}, {"cpu_seconds": -1}]
)
def test_limits_that_are_none(bad):
    with pytest.raises(ValueError):
        Limits(**bad)
