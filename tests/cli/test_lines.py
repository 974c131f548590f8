import io

from ascent.cli.lines import echo, line_width, wrap


def test_lines_break_between_words_and_never_inside_one():
    assert wrap("a run of words", None) == wrap("a run of words", 14) == "a run of words"
    assert wrap("  a run of words", 10) == "  a run of\n    words"
    assert wrap("name  what it is", 10, hang=6) == "name  what\n      it\n      is"
    assert (
        wrap("to /a/very/long-path/that-is/one-word", 12)
        == "to\n  /a/very/long-path/that-is/one-word"
    )
    assert wrap("one\n\ntwo", 80) == "one\n\ntwo"


def test_a_pipe_has_no_width_unless_it_is_given(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert line_width(io.StringIO()) is None
    monkeypatch.setenv("COLUMNS", "70")
    assert line_width(io.StringIO()) == 70
    monkeypatch.setenv("COLUMNS", "wide")
    assert line_width(io.StringIO()) is None


def test_text_is_printed_as_it_is(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    echo("[red] :100: [/] a longer sentence")
    echo("aside", err=True)
    assert capsys.readouterr() == ("[red] :100: [/] a\n  longer sentence\n", "aside\n")
