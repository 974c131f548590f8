from typer.testing import CliRunner

from ascent.cli.main import app
from ascent.config.load import shipped_recipes


def test_recipes_lists_each_with_its_first_line():
    done = CliRunner().invoke(app, ["recipes"])
    assert done.exit_code == 0
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert lines == shipped_recipes()


def test_recipes_without_a_measured_result_say_so():
    for name, line in shipped_recipes().items():
        assert "No result measured yet" in line, name
