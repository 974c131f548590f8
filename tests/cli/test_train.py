import pytest
from typer.testing import CliRunner

from ascent.build import resolve
from ascent.cli.main import app
from ascent.cli.train import open_run
from ascent.config.load import load_config
from ascent.config.show import as_yaml


def test_train_writes_the_resolved_config_and_says_it_trained_nothing(tmp_path):
    folder = tmp_path / "a" / "run"
    done = CliRunner().invoke(app, ["train", "rlvr", "rollouts.group_size=4", "--run", str(folder)])
    assert done.exit_code == 2
    assert "no training loop yet" in done.stderr
    assert [path.name for path in folder.iterdir()] == ["config.yaml"]
    saved = resolve(load_config(str(folder / "config.yaml"))).config
    assert saved == resolve(load_config("rlvr", ["rollouts.group_size=4"])).config
    assert as_yaml(saved) in (folder / "config.yaml").read_text()


def test_a_bad_recipe_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="gives no baseline"):
        CliRunner().invoke(
            app, ["train", "rlvr", "rollouts.group_size=1", "--run", str(tmp_path / "run")], catch_exceptions=False
        )
    assert not (tmp_path / "run").exists()


def test_a_run_never_writes_over_another(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="is not empty, and a run never writes over another"):
        open_run(tmp_path, "seed: 0")


def test_an_empty_folder_will_do(tmp_path):
    assert open_run(tmp_path, "seed: 0").read_text() == "seed: 0"


def test_a_file_in_the_way_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(ValueError, match="is a file; name a folder"):
        open_run(path, "")
    with pytest.raises(ValueError, match="cannot be written: Not a directory"):
        open_run(path / "run", "")
