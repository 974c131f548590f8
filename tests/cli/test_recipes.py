from importlib import resources
from pathlib import Path

from typer.testing import CliRunner

from ascent.cli.main import app
from ascent.config.load import shipped_recipes


def test_recipes_lists_each_with_its_first_line():
    done = CliRunner().invoke(app, ["recipes"])
    assert done.exit_code == 0
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert lines == shipped_recipes()
    assert "ascent train grpo model=MODEL data=DATA" in done.stderr


def test_a_recipe_says_where_its_result_is_or_that_there_is_none():
    for name, line in shipped_recipes().items():
        text = (
            resources.files("ascent")
            .joinpath("recipes", f"{name}.yaml")
            .read_text(encoding="utf-8")
        )
        measured = [each for each in text.splitlines() if each.startswith("# Measured: ")]
        assert len(measured) == ("No result measured yet" not in line), name
        for each in measured:
            assert Path(each.removeprefix("# Measured: ").split()[0]).is_file(), each
