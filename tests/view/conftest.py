"""The trained runs and their page, for every test of this folder. The browser is a plugin: one for all folders."""

from tests.view.served import url  # noqa: F401
from tests.view.trained import trained  # noqa: F401
