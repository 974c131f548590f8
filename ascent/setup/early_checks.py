"""What is wrong with the names in a recipe, said before gigabytes are hashed and loaded."""

from __future__ import annotations

from ascent.data.load import check_path
from ascent.envs.registry import BUILT_IN as ENVS
from ascent.models.locate import resolve
from ascent.plan.resolve import Plan
from ascent.plugins import find_target
from ascent.setup.fingerprints import InputName, find_inputs
from ascent.setup.objects import is_object
from ascent.setup.policy import TINY
from ascent.setup.rewards import check_rewards
from ascent.tasks.named import is_task


def check_names(plan: Plan) -> None:
    """ValueError for a path that does not exist, and for a reward or an environment that nothing defines. Nothing is
    made, loaded or asked of the hub; a file with rewards is run once, here or later."""
    for each in find_inputs(plan):
        if each.kind == "data" and not is_task(each.name):
            check_path(each.name)
        elif each.kind == "model" and not each.name.startswith(TINY) and not is_object(each.name):
            _check_model(each)
    if plan.row.samples:
        check_rewards(plan)
    env = plan.config.env
    if env is not None and not is_object(env.use):
        find_target("env", env.use, ENVS)


def _check_model(each: InputName) -> None:
    try:
        resolve(each.name)
    except ValueError as error:
        raise ValueError(f"{each.key}: {error}") from error
