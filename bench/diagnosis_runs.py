"""The runs of bench/diagnosis.py: failures made on purpose, and healthy runs of all kinds, on tiny models.

There are three sets. Rules were written on `tuning`; `scoring` has other seeds and other settings, `third` also another
task, other habits of the policies and other algorithms. Every run takes 2 to 10 seconds on one core.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ascent.models import tiny
from bench.diagnosis_data import (
    LISTS,
    SORT,
    SUMS,
    Rows,
    differences,
    easy_rows,
    hard_rows,
    pair_rows,
    prompt_rows,
    shown,
)
from tests.end_to_end import talking

Set = Literal["tuning", "scoring", "third"]
SETS: tuple[Set, ...] = ("tuning", "scoring", "third")
REWARDS = Path(__file__).with_name("diagnosis_rewards.py")
TRUTH = {"use": "verifier", "weight": 0}  # logged, not trained on
START_STEPS = {LISTS: 350, SORT: 140, SUMS: 700}
Keys = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """`cause` is what the diagnosis must name first; None for a healthy run. `noise` is added to the log-probs that the
    sampler reports."""

    name: str
    cause: str | None
    recipe: Keys
    noise: float = 0.0


class Corpus:
    """The cases of one set. Starts, reward models and data files are made once, in `root`."""

    def __init__(self, root: Path, name: Set, train: Callable[[Keys, Path], Path]) -> None:
        self.root, self.set, self._train = root, name, train
        self._seed = 1000 * SETS.index(name)

    def pick(self, *values: Any) -> Any:
        """One value for each of SETS."""
        assert len(values) == len(SETS), values
        return values[SETS.index(self.set)]

    def seed(self) -> int:
        self._seed += 1
        return self._seed

    # --- what runs begin with ----------------------------------------------------------------------------------------

    def file(self, name: str, rows: Callable[[], Rows]) -> str:
        path = self.root / "data" / f"{name}.jsonl"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows()))
        return str(path)

    def shown(self, task: str, seed: int, count: int = 8192) -> Rows:
        manners = self.pick({}, {}, {"praise": "yes {}", "wrap": "({})"})
        return shown(task, seed, count, **manners)

    def start(self, task: str) -> str:
        """A policy that answers a quarter to a half of the questions, and has mannerisms for a reward to find."""
        seed = self.pick(0, 7, 13)
        data = self.file(f"shown-{task}-{seed}", lambda: self.shown(task, seed))
        return self.supervised(f"start-{task}-{seed}", data, seed, steps=START_STEPS[task])

    def easy_start(self, task: str) -> str:
        seed = self.pick(0, 7, 13)
        rows = [
            {"prompt": each["prompt"], "completion": each["answer"]}
            for each in easy_rows(task, seed)
        ]
        data = self.file(f"easy-{self.set}", lambda: rows * 8)
        return self.supervised(f"start-easy-{self.set}", data, seed, steps=300)

    def supervised(self, name: str, data: str, seed: int, *, steps: int) -> str:
        model = self.root / "models" / f"untrained-{seed}"
        if not (model / "config.json").is_file():
            tiny.create(model, **{**tiny.NAMED["digits"], "layers": 2}, seed=seed)
        keys = {
            **SUPERVISED,
            "seed": seed,
            "model.policy": str(model),
            "data.train": data,
            "run.steps": steps,
        }
        return str(self._train(keys, self.root / "starts" / name))

    def tools_start(self, seed: int) -> str:
        """A policy that calls a calculator half of the time."""
        folder = self.root / "starts" / f"tools-{seed}"
        if not (folder / "sft" / "outcome.json").is_file():
            talking.begin(talking.DIFFERENCES, folder, seed, steps=250)
        return str(folder / "sft")

    def reward_model(
        self, name: str, *, flipped: bool = False, pairs: int = 2048, steps: int = 40
    ) -> str:
        seed = self.pick(3, 9, 15)
        data = self.file(
            f"{name}-{self.set}", lambda: pair_rows(LISTS, pairs, seed, flipped=flipped)
        )
        keys = {
            **PREFERENCES,
            "algorithm": "reward_model",
            "seed": seed,
            "model.policy": self.start(LISTS),
        }
        keys |= {"data.train": data, "update.learning_rate": 1e-3, "run.steps": steps}
        return str(self._train(keys, self.root / "starts" / f"{name}-{self.set}"))

    # --- recipes -----------------------------------------------------------------------------------------------------

    def rl(self, task: str, **keys: Any) -> dict[str, Any]:
        given = {name.replace("__", "."): value for name, value in keys.items()}
        evaluate = {} if "data.evaluate" in given else {"data.evaluate": f"{task}@heldout:64"}
        base = {"model.policy": self.start(task), "data.train": f"{task}:2048", **evaluate}
        rate = (
            {"update.learning_rate": SUMS_RATE} if task == SUMS else {}
        )  # others spoil this policy in one update
        return {
            **ROLLOUTS,
            **self.pick({}, {}, OTHER_ROLLOUTS),
            **rate,
            **base,
            "seed": self.seed(),
            **given,
        }

    def sft(self, task: str, **keys: Any) -> dict[str, Any]:
        given = {name.replace("__", "."): value for name, value in keys.items()}
        base = {
            "data.train": f"{task}:4096",
            "data.evaluate": f"{task}@heldout:128",
            "run.evaluate_every": 20,
        }
        return {
            **SUPERVISED,
            **base,
            "model.policy": "tiny:digits",
            "run.steps": 80,
            "seed": self.seed(),
            **given,
        }

    def preference(self, algorithm: str, task: str, **keys: Any) -> dict[str, Any]:
        given = {name.replace("__", "."): value for name, value in keys.items()}
        base = {
            "model.policy": given.pop("model.policy", None) or self.start(task),
            "data.train": f"{task}:2048",
            "data.evaluate": f"{task}@heldout:128",
        }
        rest = {"algorithm": algorithm, "seed": self.seed(), "run.evaluate_every": 10}
        return {**PREFERENCES, **base, **rest, **given}

    def tools(self, **keys: Any) -> dict[str, Any]:
        study, seed = talking.DIFFERENCES, self.pick(0, 7, 13)
        rows = {
            split: self.file(
                f"differences-{split}-{seed}", lambda split=split: differences(split, seed)
            )
            for split in ("train", "heldout")
        }
        given = {name.replace("__", "."): value for name, value in keys.items()}
        return {
            **ROLLOUTS,
            "algorithm": "rlvr",
            "model.policy": self.tools_start(seed),
            "data.train": rows["train"],
            "data.evaluate": rows["heldout"],
            "env": study.env,
            "rewards": study.rewards,
            "seed": self.seed(),
            "rollouts.max_new_tokens": study.max_new_tokens,
            "update.learning_rate": study.learning_rate,
            **given,
        }


SUPERVISED: dict[str, Any] = {
    "algorithm": "sft",
    "data.batch_size": 64,
    "data.max_tokens": 64,
    "update.learning_rate": 3e-3,
    "update.schedule": "cosine",
    "update.warmup_steps": 10,
    "run.save_every": 10000,
}
PREFERENCES: dict[str, Any] = {
    "data.batch_size": 32,
    "data.max_tokens": 64,
    "update.learning_rate": 1e-4,
    "update.schedule": "cosine",
    "update.warmup_steps": 3,
    "run.steps": 40,
    "run.save_every": 10000,
}
ROLLOUTS: dict[str, Any] = {
    "algorithm": "grpo",
    "rewards": [{"use": "verifier"}],
    "rollouts.prompts_per_step": 8,
    "rollouts.group_size": 8,
    "rollouts.max_new_tokens": 14,
    "update.learning_rate": 6e-4,
    "run.steps": 24,
    "run.evaluate_every": 4,
    "run.save_every": 10000,
}
OTHER_ROLLOUTS: dict[str, Any] = {
    "rollouts.prompts_per_step": 10,
    "rollouts.group_size": 6,
    "rollouts.max_new_tokens": 16,
    "update.learning_rate": 5e-4,
    "run.steps": 26,
}
SUMS_RATE = 1e-4
PPO: dict[str, Any] = {
    "algorithm": "rlhf",
    "rollouts__group_size": 1,
    "rollouts__prompts_per_step": 40,
    "update__target_kl": 0.05,
    "update__learning_rate": 5e-4,
    "update__critic_learning_rate": 2e-3,
}


def beside_truth(name: str, **options: Any) -> list[dict[str, Any]]:
    """The task's own reward, and one that often has no answer."""
    return [{"use": "verifier"}, {"use": f"{REWARDS}:{name}", "on_error": "never", **options}]


def reward(name: str, **options: Any) -> list[dict[str, Any]]:
    """A bad reward, and the truth beside it."""
    return [{"use": f"{REWARDS}:{name}", **options}, TRUTH]


def failing(at: Corpus) -> Iterator[Case]:
    """Failures of runs that sample, each on every task of the set."""
    for task in at.pick((LISTS, SORT), (LISTS, SORT), (SUMS,)):
        for name, cause, keys in _rollout_failures(at, task):
            noise = keys.pop("noise", 0.0)
            yield Case(f"{name}-{task}", cause, at.rl(task, **keys), noise=noise)


def _rollout_failures(at: Corpus, task: str) -> list[tuple[str, str, dict[str, Any]]]:
    pick = at.pick
    hard = at.file(f"hard-{at.set}", lambda: hard_rows(task, pick(5, 6, 16)))
    easy = at.file(f"easy-prompts-{at.set}", lambda: easy_rows(task, pick(5, 5, 16)))
    judge = pick("flattered_judge", "flattered_judge", "agreeable_judge")
    short = {"update__learning_rate": pick(2e-4, 2.5e-4, 1e-4), "run__steps": pick(16, 16, 14)}
    ppo = {**PPO, "update__learning_rate": pick(5e-4, 5e-4, SUMS_RATE)}
    few, fast = pick(2, 3, 4), {"update__learning_rate": pick(2e-3, 3e-3, 2.5e-3)}
    long = {"data__evaluate": "10%", "rollouts__max_new_tokens": pick(28, 30, 36)}
    return [
        ("lr-high", "learning_rate_too_high", {"update__learning_rate": pick(0.03, 0.05, 0.025)}),
        ("lr-low", "learning_rate_too_low", {"update__learning_rate": pick(1e-7, 3e-7, 4e-7)}),
        (
            "explosion",
            "entropy_explosion",
            {"cells__entropy_bonus": {"use": "bonus", "weight": pick(0.5, 1.0, 0.7)}},
        ),
        ("length", "reward_hacking_length", {"rewards": reward("length")}),
        ("repetition", "reward_hacking_repetition", {"rewards": reward("repetition")}),
        (
            "format",
            "reward_hacking_format",
            {"rewards": reward(pick("format_marks", "format_marks", "parentheses"))},
        ),
        ("flattery", "reward_hacking_flattery", {"rewards": reward(judge)}),
        ("truncation", "truncation", {"rollouts__max_new_tokens": pick(4, 3, 5)}),
        ("too-hard", "no_signal_too_hard", {"data__train": hard, **long}),
        (
            "too-easy",
            "no_signal_too_easy",
            {
                "model__policy": at.easy_start(task),
                "data__train": easy,
                "data__evaluate": "20%",
            },
        ),
        ("prompt-only", "no_signal_equal_groups", {"rewards": reward("prompt_only")}),
        ("constant", "constant_reward", {"rewards": reward("constant")}),
        (
            "coin",
            "noisy_reward",
            {"rewards": reward("coin"), "update__learning_rate": pick(1e-3, 7e-4, 2e-4)},
        ),
        ("unscored", "unscored_rewards", {"rewards": beside_truth("often_unscored")}),
        (
            "timeout",
            "unscored_rewards",
            {"rewards": beside_truth("slow", timeout=0.05), "run__steps": 8},
        ),
        (
            "mismatch",
            "sampler_mismatch",
            {"rollouts__engine": "hf", "noise": pick(0.3, 0.2, 0.25), "run__steps": 12},
        ),
        ("stale", "stale_rollouts", {"rollouts__max_staleness": pick(12, 10, 8), **fast}),
        (
            "critic",
            "critic_explains_nothing",
            {**ppo, "update__critic_learning_rate": pick(1e-8, 1e-7, 3e-8)},
        ),
        (
            "few-prompts",
            "overfitting",
            {
                "data__train": at.file(
                    f"few-{task}-{at.set}", lambda: prompt_rows(task, few, pick(5, 6, 16))
                ),
                "rollouts__prompts_per_step": few,
                "rollouts__group_size": 24,
                "run__steps": 40,
            },
        ),
        ("short", "needs_more_steps", short),
    ]


def failing_once(at: Corpus) -> Iterator[Case]:
    """Failures that need files or models of their own."""
    pick = at.pick
    model = [{"use": "reward_model"}]
    never_good = [{"use": f"{REWARDS}:negative"}, {"use": "verifier", "weight": 0.5}]
    alone = {"algorithm": "reinforce", "rollouts__group_size": 1, "rollouts__prompts_per_step": 64}
    cold = {
        "rollouts__temperature": pick(0.25, 0.3, 0.2),
        "update__learning_rate": pick(6e-4, 8e-4, 7e-4),
    }
    no_penalty = {"cells__reward_shaping": {"kl_penalty": {"beta": 0.0}}, "run__steps": 40}
    fast = {**PPO, "update__learning_rate": pick(1e-3, 8e-4, 9e-4)}
    yield Case("collapse-grpo", "entropy_collapse", at.rl(SORT, **cold))
    yield Case("collapse-rloo", "entropy_collapse", at.rl(SORT, algorithm="rloo", **cold))
    wrong = at.reward_model("flipped", flipped=True)
    small = at.reward_model("few-pairs", pairs=pick(24, 32, 28), steps=30)
    yield Case(
        "kl",
        "kl_runaway",
        at.rl(LISTS, **fast, **no_penalty, model__reward_model=small, rewards=model),
    )
    longer = {"rollouts__max_new_tokens": pick(24, 28, 26), "cells__filter": {"not_truncated": {}}}
    yield Case(
        "length-explosion", "length_explosion", at.rl(LISTS, **alone, **longer, rewards=never_good)
    )
    yield Case(
        "rm-wrong",
        "reward_model_wrong",
        at.rl(LISTS, **PPO, model__reward_model=wrong, rewards=[*model, TRUTH]),
    )
    overdone = {**fast, **no_penalty, "model__reward_model": small, "rewards": [*model, TRUTH]}
    yield Case("rm-overdone", "reward_model_overoptimized", at.rl(LISTS, **overdone))
    coins = at.file(
        f"coin-pairs-{at.set}", lambda: pair_rows(LISTS, 1024, pick(4, 8, 14), coin=True)
    )
    coin = {"data__train": coins, "data__evaluate": "20%"}
    yield Case(
        "rm-coin",
        "noisy_labels",
        at.preference("reward_model", LISTS, **coin, update__learning_rate=1e-3),
    )
    yield Case(
        "dpo-coin", "noisy_labels", at.preference("dpo", LISTS, **coin, update__learning_rate=2e-4)
    )
    for task in pick((LISTS, SORT), (LISTS, SORT), (SORT, SUMS)):
        rows = at.shown(task, pick(1, 8, 14), 4096)
        yield Case(
            f"sft-lr-high-{task}",
            "learning_rate_too_high",
            at.sft(
                task, model__policy=at.start(task), update__learning_rate=pick(0.05, 0.08, 0.06)
            ),
        )
        yield Case(
            f"sft-lr-low-{task}",
            "learning_rate_too_low",
            at.sft(task, update__learning_rate=pick(1e-6, 2e-6, 1.5e-6)),
        )
        yield Case(
            f"sft-few-{task}",
            "overfitting",
            at.sft(task, data__train=f"{task}:{pick(64, 96, 80)}", run__steps=160),
        )
        copies = at.file(f"copies-{task}-{at.set}", lambda rows=rows: rows[: pick(64, 48, 56)] * 32)
        yield Case(
            f"sft-copies-{task}", "data_copies", at.sft(task, data__train=copies, run__steps=120)
        )
        ordered = at.file(
            f"ordered-{task}-{at.set}",
            lambda rows=rows: sorted(rows, key=lambda row: (len(row["prompt"]), row["prompt"])),
        )
        yield Case(
            f"sft-order-{task}",
            "data_order",
            at.sft(task, data__train=ordered, data__shuffle=False, run__steps=64),
        )
        leaked = at.file(f"leaked-{task}-{at.set}", lambda rows=rows: rows[: pick(128, 128, 96)])
        known = at.file(f"known-{task}-{at.set}", lambda rows=rows: rows[: pick(1024, 1024, 768)])
        yield Case(
            f"sft-leak-{task}", "data_leak", at.sft(task, data__train=known, data__evaluate=leaked)
        )


def healthy(at: Corpus) -> Iterator[Case]:
    """SFT, DPO and its kin, reward models, PPO, the GRPO family, tools; more of each where rules are scored."""
    seeds = at.pick(1, 2, 2)
    for turn in range(seeds):
        for task in at.pick(
            (LISTS, SORT, "sort_short"), (LISTS, SORT, "sort_short"), (LISTS, SORT, SUMS)
        ):
            yield Case(f"sft-{task}-{turn}", None, at.sft(task, run__steps=at.pick(100, 120, 110)))
        for name in at.pick(("dpo",), ("dpo", "ipo", "simpo"), ("dpo", "kto", "cpo")):
            yield Case(f"{name}-{turn}", None, at.preference(name, LISTS))
        yield Case(
            f"reward-model-{turn}",
            None,
            at.preference("reward_model", LISTS, update__learning_rate=1e-3),
        )
        yield Case(f"ppo-{LISTS}-{turn}", None, at.rl(LISTS, **PPO))
        second, size = at.pick(SORT, SORT, SUMS), {"rollouts__group_size": at.pick(8, 8, 6)}
        ppo = {**PPO, "update__learning_rate": at.pick(5e-4, 5e-4, SUMS_RATE)}
        yield Case(f"ppo-{second}-{turn}", None, at.rl(second, **ppo))
        family, rows = (
            at.pick(LISTS, LISTS, SUMS),
            at.pick((), ("rloo", "dr_grpo", "gspo"), ("lite_ppo", "cispo", "rloo")),
        )
        for name in ("grpo", "rlvr", *rows):
            yield Case(f"{name}-{family}-{turn}", None, at.rl(family, algorithm=name, **size))
        yield Case(f"grpo-{SORT}-{turn}", None, at.rl(SORT))
        yield Case(f"tools-{turn}", None, at.tools())
    yield Case(
        "style-reward-model",
        None,
        at.preference(
            "reward_model", "style", update__learning_rate=1e-3, model__policy=at.start(LISTS)
        ),
    )


def cases(at: Corpus) -> list[Case]:
    return [*failing_once(at), *healthy(at), *failing(at)]
