from ascent.algorithms import TABLE, VOCABULARY
from ascent.cli.algorithms_page import markdown

PAGE = markdown(TABLE.values())


def test_every_row_has_a_section_and_a_link_to_it():
    for name in TABLE:
        assert f"\n## {name}\n" in PAGE
        assert f"| [{name}](#{name}) |" in PAGE


def test_every_cell_has_a_line_under_its_slot():
    cells = PAGE.split("\n## Cells\n")[1].split("\n## ")[0]
    slots = {part.split("\n")[0]: part for part in cells.split("\n### ")[1:]}
    assert list(slots) == list(VOCABULARY)
    for slot, known in VOCABULARY.items():
        assert [
            line.split("`")[1] for line in slots[slot].splitlines() if line.startswith("| `")
        ] == list(known)


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
        line
        for line in PAGE.splitlines()
        if line.startswith("- Formula") and "KL(old || pi)" in line.replace("\\", "")
    )
    assert "KL(old \\|\\| pi)" in formula
