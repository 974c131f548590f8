"""The silence ends with its block, whatever happens in it."""

import pytest
from transformers.utils import logging

from ascent.models.hf_logging import quiet_transformers


@pytest.mark.parametrize("bars", [True, False])
def test_level_and_bars_come_back(bars):
    was, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    (logging.enable_progress_bar if bars else logging.disable_progress_bar)()
    try:
        with pytest.raises(KeyError), quiet_transformers():
            assert logging.get_verbosity() == logging.ERROR
            assert not logging.is_progress_bar_enabled()
            raise KeyError
        assert logging.is_progress_bar_enabled() == bars
        assert logging.get_verbosity() == level
    finally:
        (logging.enable_progress_bar if was else logging.disable_progress_bar)()
