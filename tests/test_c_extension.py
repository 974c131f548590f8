"""What is written in C: compiled once, kept, and done without where it cannot be had, which is said."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from ascent import c_extension


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path / "ascent"


def library() -> object:
    """As in a new process."""
    return c_extension.library.__wrapped__()


def test_it_is_compiled_once_and_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert library() is not None
    (kept,) = cache.iterdir()
    made = kept.stat().st_mtime_ns
    monkeypatch.setenv("CC", "no-such-compiler")  # none is asked for any more
    assert library() is not None
    assert kept.stat().st_mtime_ns == made
    monkeypatch.setattr(
        c_extension, "FLAGS", ("-O2", "-fPIC", "-shared")
    )  # other flags, another file
    assert library() is None


def test_where_the_cache_cannot_be_written_to_it_is_compiled_anew(cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    assert library() is not None
    assert cache.is_file()


def test_without_a_compiler_it_says_so(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", "")
    with caplog.at_level(logging.WARNING):
        assert library() is None
    assert "no C compiler was found (cc, gcc, clang)" in caplog.text
    assert "or name one in the environment variable CC" in caplog.text
    assert not cache.exists()


def test_a_compiler_that_fails_is_quoted(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken"
    broken.write_text(
        "#!/bin/sh\nprintf 'what is this \\377' >&2\nexit 3\n"
    )  # and a byte that is no text
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with caplog.at_level(logging.WARNING):
        assert library() is None
    assert f"{broken} failed: what is this" in caplog.text
    assert not list(cache.iterdir())


def test_the_compiler_of_ones_choice_is_taken_with_its_options(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = next(path for name in c_extension.COMPILERS if (path := shutil.which(name)))
    own = tmp_path / "own"
    own.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/asked\nexec {real} "$@"\n')
    own.chmod(0o755)
    monkeypatch.setenv("CC", f"{own} -DANY=1")
    assert library() is not None
    assert (tmp_path / "asked").read_text().strip() == "-DANY=1"


def test_nobodys_home_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as where no home is known
    monkeypatch.chdir(tmp_path)
    assert library() is not None
    assert not list(tmp_path.iterdir())


def test_a_kept_file_that_cannot_be_used_is_replaced(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert library() is not None
    (kept,) = cache.iterdir()
    other = tmp_path / "other" / "ascent" / kept.name  # a path that this process has not opened yet
    other.parent.mkdir(parents=True)
    other.write_text("not a library")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert library() is not None
    assert other.read_bytes() == kept.read_bytes()
    assert list(other.parent.iterdir()) == [other]


def test_what_cannot_be_loaded_is_not_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (compiler,) = c_extension._compiler()
    monkeypatch.setenv("CC", f"{compiler} -c")  # an object file
    with caplog.at_level(logging.WARNING):
        assert library() is None
    assert "runs without compiled functions" in caplog.text
    assert not list(cache.iterdir())


@pytest.mark.parametrize(
    ("named", "said"), [('cc "', "No closing quotation"), ("no-such", "found (no-such)")]
)
def test_a_strange_choice_is_said(
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    named: str,
    said: str,
) -> None:
    monkeypatch.setenv("CC", named)
    with caplog.at_level(logging.WARNING):
        assert library() is None
    assert said in caplog.text


def test_a_blank_choice_is_none(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "  ")
    assert library() is not None
