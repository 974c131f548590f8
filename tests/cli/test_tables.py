from ascent.cli.tables import broken


def test_long_names_break_at_underscores():
    assert broken("sequence_mean_token_mean", 11) == "sequence_\nmean_token_\nmean"
    assert broken("token_mean", 11) == "token_mean"
    assert broken("unbreakable_word", 4) == "unbreakable_\nword"
    assert broken("", 11) == ""
