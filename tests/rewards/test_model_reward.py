"""A model's scores through the one signature."""

from ascent.rewards.calls import score_all
from ascent.rewards.model_reward import ModelReward
from tests.rewards.rollouts import rollout


class Half:
    def score(self, rollouts):
        return [None if each.text == "?" else 0.5 for each in rollouts]


def test_none_is_unscored_by_name():
    found = score_all(
        {"model": ModelReward(scorer=Half())}, [rollout("a"), rollout("?")], timeout=5
    )
    assert found[0]["model"].parts == {"": 0.5}
    assert found[1]["model"].failure.kind == "model"
