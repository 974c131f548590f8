"""Protocols promise shapes; these tests keep them as narrow as they were designed."""

import inspect

import pytest

from ascent import protocols

EXPECTED = {
    "Sampler": {"sample", "set_weights", "close"},
    "Learner": {"logprobs", "begin_step", "step", "weights", "state", "load_state", "close"},
    "Scorer": {"score"},
    "Env": {"first", "reply"},
    "Reward": {"__call__"},
    "Source": {"next", "more", "report", "refresh", "state", "load_state"},
    "Tracker": {"log", "close"},
    "Metric": {"value", "merge"},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_protocols_stay_this_narrow(name):
    methods = {
        key for key, value in vars(getattr(protocols, name)).items() if inspect.isfunction(value)
    }
    assert methods - {"__init__", "__subclasshook__"} == EXPECTED[name]


def test_there_are_no_other_protocols():
    found = {
        name for name, each in vars(protocols).items() if getattr(each, "_is_protocol", False)
    } - {"Protocol"}
    assert found == set(EXPECTED)
