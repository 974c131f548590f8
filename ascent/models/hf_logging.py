"""Silence transformers: its warnings are errors here, and its progress bars are not needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

from transformers.utils import logging

# While it builds a model, transformers replaces functions of its own and torch's default dtype for the whole process.
# Two threads at once (two servers that receive new weights) would put each other's replacements back for good.
_ONE_AT_A_TIME = RLock()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Errors only, no progress bars, and no other thread, inside the block."""
    with _ONE_AT_A_TIME:
        level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()
