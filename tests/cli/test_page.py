from ascent.algorithms import TABLE
from ascent.cli.page import markdown

PAGE = markdown(TABLE.values())


def test_every_row_has_a_section_and_a_link_to_it():
    for name in TABLE:
        assert f"\n## {name}\n" in PAGE
        assert f"| [{name}](#{name}) |" in PAGE


def test_tables_are_regular():
    columns = 0
    for line in PAGE.splitlines():
        if line.startswith("|---"):
            columns = line.count("---")
        elif line.startswith("| ") and columns:
            assert line.replace("\\|", "").count("|") == columns + 1, line
        elif not line:
            columns = 0


def test_formulas_are_not_taken_for_markup():
    formula = next(
        line for line in PAGE.splitlines() if line.startswith("- Formula") and "KL(old || pi)" in line.replace("\\", "")
    )
    assert "KL(old \\|\\| pi)" in formula
