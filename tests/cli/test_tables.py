from ascent.algorithms import TABLE
from ascent.cli.tables import print_rows


def test_every_name_is_whole_at_any_width(monkeypatch, capsys):
    for columns in ("60", "80", "120", "400"):
        monkeypatch.setenv("COLUMNS", columns)
        print_rows(TABLE.values())
        words = set(capsys.readouterr().out.replace(";", " ").replace(",", " ").split())
        assert words >= set(TABLE)
        assert words >= {
            "sequence_mean_token_scaled",
            "group_mean_baseline",
            "sequence_geometric_token",
        }


def test_a_wide_table_has_a_column_for_every_slot(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "400")
    print_rows([TABLE["grpo"]])
    assert "advantage_norm  ratio  policy_loss" in capsys.readouterr().out
