"""What a user installs: the wheel in a bare virtual environment, run from somewhere else."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import ascent
from ascent.algorithms import TABLE
from ascent.config.load import shipped_recipes

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A virtual environment that holds the wheel. Its dependencies are those of the environment that runs the tests."""
    wheels, folder = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("environment")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(ROOT)]
    subprocess.run([*pip, *build], check=True, timeout=300)
    (wheel,) = wheels.glob("ascent_posttrain-*.whl")
    venv.create(folder, with_pip=False)
    install = [
        "--python",
        str(folder / "bin/python"),
        "install",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    subprocess.run([*pip, *install], check=True, timeout=300)
    # A .pth file adds a folder to the path but does not follow the .pth files in it: an editable install stays hidden.
    (site_packages(folder) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def site_packages(environment):
    (found,) = environment.glob("lib/python*/site-packages")
    return found


def run(environment, cwd, program, *arguments):
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(environment / "bin" / program), *map(str, arguments)]
    done = subprocess.run(
        command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_installed_package_is_the_one_that_runs(environment, tmp_path):
    where = run(environment, tmp_path, "python", "-c", "import ascent; print(ascent.__file__)")
    assert Path(where.strip()).is_relative_to(environment)


def test_the_command_works_elsewhere(environment, tmp_path):
    assert run(environment, tmp_path, "ascent", "--version") == f"ascent {ascent.__version__}\n"
    table = run(environment, tmp_path, "ascent", "show", "algorithms")
    assert all(f" {name} " in table for name in TABLE)
    listed = run(environment, tmp_path, "ascent", "recipes")
    assert [line.split()[0] for line in listed.splitlines()] == list(shipped_recipes())


def test_recipes_and_types_travel_in_the_wheel(environment):
    package = site_packages(environment) / "ascent"
    assert {path.stem for path in (package / "recipes").glob("*.yaml")} == set(shipped_recipes())
    assert (package / "py.typed").exists() and (package / "c_extension.c").exists()
    assert not (site_packages(environment) / "tests").exists()


def test_it_trains_samples_and_resumes(environment, tmp_path):
    keys = [
        "model.policy=tiny:llama",
        "data.batch_size=4",
        "data.max_tokens=64",
        "run.save_every=1",
        "update.warmup_steps=0",
    ]
    sft = [
        "sft",
        *keys,
        "data.train=arithmetic:16",
        "data.evaluate=arithmetic@heldout:4",
        "run.steps=2",
    ]
    run(environment, tmp_path, "ascent", "train", *sft, "--run", "runs/sft")
    assert "finished  step 2" in run(environment, tmp_path, "ascent", "runs", "runs")
    config = tmp_path / "runs/sft/config.yaml"
    config.write_text(config.read_text().replace("steps: 2", "steps: 3"))
    run(environment, tmp_path, "ascent", "resume", "runs/sft")
    assert "-> " in run(
        environment, tmp_path, "ascent", "sample", "runs/sft", "1+1=", "--max-new-tokens", "3"
    )
    code = (
        "import ascent\n"
        "recipe = {'algorithm': 'grpo', 'model.policy': 'runs/sft', 'data.train': 'sort_digits:8',\n"
        "          'rewards': [{'use': 'verifier'}], 'rollouts.prompts_per_step': 2, 'rollouts.group_size': 2,\n"
        "          'rollouts.max_new_tokens': 4, 'run.steps': 1}\n"
        "print(ascent.train(recipe, run='runs/grpo', say=lambda line: None).state)\n"
    )
    assert run(environment, tmp_path, "python", "-c", code) == "finished\n"
