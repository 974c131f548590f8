"""What a user installs: the wheel, in a folder of its own, run from somewhere else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ascent
from ascent.algorithms import TABLE
from ascent.config.load import shipped_recipes

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder that holds the installed wheel and nothing else."""
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(ROOT)],
        check=True,
        timeout=300,
    )
    (wheel,) = wheels.glob("ascent-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True, timeout=300)
    return target


def run(installed, cwd, *command):
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_installed_package_is_the_one_that_runs(installed, tmp_path):
    where = run(installed, tmp_path, "-c", "import ascent; print(ascent.__file__)")
    assert Path(where.strip()).is_relative_to(installed)


def test_the_command_works_elsewhere(installed, tmp_path):
    command = str(installed / "bin" / "ascent")
    assert run(installed, tmp_path, command, "--version") == f"ascent {ascent.__version__}\n"
    table = run(installed, tmp_path, command, "show", "algorithms")
    assert all(f" {name} " in table for name in TABLE)
    listed = run(installed, tmp_path, command, "recipes")
    assert [line.split()[0] for line in listed.splitlines()] == list(shipped_recipes())


def test_recipes_and_types_travel_in_the_wheel(installed):
    recipes = {path.stem for path in (installed / "ascent" / "recipes").glob("*.yaml")}
    assert recipes == set(shipped_recipes())
    assert (installed / "ascent" / "py.typed").exists()
    assert not (installed / "tests").exists()
