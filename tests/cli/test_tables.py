from ascent.cli.tables import break_name


def test_long_names_break_at_underscores():
    assert break_name("sequence_mean_token_mean", 11) == "sequence_\nmean_token_\nmean"
    assert break_name("token_mean", 11) == "token_mean"
    assert break_name("unbreakable_word", 4) == "unbreakable_\nword"
    assert break_name("", 11) == ""
