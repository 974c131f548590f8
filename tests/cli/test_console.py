import re
from pathlib import Path

import ascent
from ascent.cli.console import fit_columns, make_console, print_table, print_text

WORDS = "[red]:100: [/] [link=x]"


def test_what_users_write_is_no_markup(capsys):
    console = make_console()
    print_text(console, WORDS, "bold")
    print_table(console, ("name", WORDS), [("a", WORDS)], indent=2)
    assert capsys.readouterr().out.count(WORDS) == 3


def test_all_commands_use_this_console():
    """A console of its own would read users' words as markup and emoji codes."""
    root = Path(ascent.__file__).parent
    made = [path for path in root.rglob("*.py") if re.search(r"\bConsole\(", path.read_text())]
    assert sorted(path.relative_to(root).as_posix() for path in made) == [
        "cli/console.py",
        "runs/terminal.py",
    ]


def test_columns_are_as_wide_as_their_words_at_least():
    rows = [("a_long_name", "some words that say what it is, as long as they are"), ("b", "few")]
    assert fit_columns(("name", "what"), rows, 100) == [11, 51]
    found = fit_columns(("name", "what"), rows, 50)
    assert found is not None and found[0] >= 11 and sum(found) + 2 <= 50
    assert fit_columns(("name", "what"), rows, 40) is None  # too narrow to be read
    assert fit_columns(("name", "what"), [("a" * 30, "b" * 30)], 50) is None


def test_a_table_that_does_not_fit_becomes_blocks(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "30")
    print_table(
        make_console(),
        ("name", "what", "unit"),
        [("a" * 20, "several words that are " * 2, ""), ("b", "", "s")],
    )
    assert capsys.readouterr().out.splitlines() == [
        "a" * 20,
        "  what: several words that are",
        "    several words that are",
        "b",
        "  unit: s",
    ]


def test_piped_rows_are_one_line_each(monkeypatch, capsys):
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(make_console(), ("name", "what"), [("a", "word " * 60)])
    print_text(make_console(), "word " * 200)
    assert [len(line.split()) for line in capsys.readouterr().out.splitlines()] == [2, 1, 61, 200]
