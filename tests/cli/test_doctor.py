import importlib.util
from collections import namedtuple

from typer.testing import CliRunner

from ascent.cli import doctor
from ascent.cli.main import app


def test_doctor_reports_every_part_and_passes_with_a_complete_core():
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0
    for part in ("python", "torch", "gpu", "cpu sampling", "sandbox", "extra classic", "disk"):
        assert part in done.stdout
    assert "BROKEN" not in done.stdout


def without(monkeypatch, module):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == module else find(name)
    )


def test_a_broken_core_is_reported_and_returned(monkeypatch):
    without(monkeypatch, "torch")
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert "BROKEN   torch" in done.stdout
    assert "pip install torch" in done.stdout


def test_a_missing_extra_is_no_failure(monkeypatch):
    without(monkeypatch, "gymnasium")
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0
    assert "pip install 'ascent-posttrain[classic]'" in done.stdout


def test_the_sandbox_is_looked_for(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert "install the package bubblewrap" in doctor.sandbox().fix
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/" + name)
    assert doctor.sandbox() == doctor.Finding("sandbox", "bubblewrap at /usr/bin/bwrap")


def test_a_missing_compiler_is_reported_with_its_fix(monkeypatch, tmp_path):
    assert doctor.compiler() == doctor.Finding("cpu sampling", "compiled")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    found = doctor.compiler()
    assert found.state == "slower than it could be: no C compiler was found (no-such-compiler)"
    assert found.fix.startswith("install a C compiler") and not found.broken


def test_little_room_is_reported(monkeypatch, tmp_path):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: usage(5 * 2**30))
    assert doctor.disk(tmp_path).fix
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: usage(50 * 2**30))
    assert not doctor.disk(tmp_path).fix
