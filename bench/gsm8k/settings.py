"""GSM8K on one GPU: what is trained, for how long, and why. Written before any result was seen.

The model is SmolLM2-135M-Instruct, the test set is all of GSM8K's (1,319 questions), and device time is short, TRL's
seeds included. So everything is short, and the same for both sides:

    sft     7,473 training solutions, 2 epochs of batches of 64, learning rate 1e-4 with linear decay, no warmup.
            All of the following start from its float32 masters, both sides. (First from its bfloat16 files, as if they
            were float32; docs/results/gsm8k.md says which of its figures are from then. grpo_files is grpo from then,
            and so on.)
    pilot   grpo, 24 steps with each of LEARNING_RATES, on seed 0. The one with the highest accuracy on 1,024 training
            questions (four samples each) is that of everything below, of both sides. The test set is not looked at.
            (pilot_again is the same from the model that the rest starts from; the first was from an earlier one.)
    rl      grpo, dapo, ppo (separate critic), rloo: 32 steps of 64 prompts x 8 completions of at most 192 tokens,
            temperature 1, no KL, one update per step, seeds 1 to 3; TRL's GRPOTrainer the same, 24 steps. Accuracies
            are compared at equal steps up to 24; the other steps are for what fits into a quarter of TRL's time.
            ppo's row takes four epochs; here it takes one as the others do. dapo's row drops groups without signal and
            does not sample others for them, so its budget of rollouts is that of the others.
            ppo_lam1 is ppo with lam 1 in place of its row's .95, which leaves the first of 117 tokens .95^116 = .003 of
            the reward before the critic has learned anything (added after the first results of ppo, before its own).
            low_rate: with LOW_RATE, tested after 32 steps only. (Added when pilot_again had chosen it and one seed of
            rloo had not learned with the other, before its own results.)
    dpo     pairs of a correct and a wrong sample of the SFT model (7,473 training questions x 8 samples), one epoch in
            batches of 32, beta .1, learning rate 3e-5. (First 2,048 questions and 5e-6: nine steps in which the losses
            of both sides were 0.69 plus rounding.) Three times: from the SFT model's bfloat16 files, in float32 from
            the same files, and from its float32 masters. (The last two were added when the tests of the two sides
            differed and their losses did not: ours was tested in bfloat16, TRL's in float32.) From bfloat16 files ours
            dithers its masters; dpo_undithered is from before.
    digest  the task `digest_drafts` in the model's chat format: SFT on summaries of mixed quality, a reward model from
            2,560 pairs, and one from 256. digest_ppo: 120 steps of PPO on each of the two, with KL in the reward and
            without. The score is the proxy, the task's own utility the truth, both of the sampled summaries. (First 40
            steps on one reward model, measured greedily, where imitation was perfect already.)
    tools   the calculator: SFT and 24 steps of rlvr on solutions in which GSM8K's own annotations are calls.
    code    24 steps of rlvr on generated functions with unit tests, from the instruction-tuned model itself. Tested on
            other numbers and on other kinds of functions. (First the questions of its test were among those that were
            trained on.)

Both sides have float32 master weights and compute in bfloat16. The reward is 1 for the right number after "####" and 0
otherwise, on both sides by the same function. Models are saved every eight steps and tested afterwards, those of both
sides by the same engine: greedy, and the mean of eight samples. What is saved is float32 on both sides. Models of sft,
rl and dpo are tested in bfloat16 and in float32 (first in the dtype of their files, ours in bfloat16 and TRL's in
float32), those of tools and code in bfloat16. Models of rloo, ppo and dapo are tested after 24 and 32 steps only
(changed before any of them had run, for want of time).

Wall-clock is compared for sft and grpo, which have the GPU to themselves; the others share it.

If device time runs short the stages are dropped from the end of PHASES, not shortened.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

RL = ("grpo", "dapo", "ppo", "rloo")
LOW_RATE = 1e-5
# Stages with other numbers than their row's.
VARIANTS = {
    "ppo_lam1": "ppo",
    "ppo_lam1_low_rate": "ppo",
    "grpo_low_rate": "grpo",
    "rloo_low_rate": "rloo",
    "dapo_low_rate": "dapo",
}
# In order; the stages of the second and the last phase run side by side, and their seconds say nothing.
PHASES = (
    ("sft", "trl_sft"),
    ("pilot",),
    ("grpo", "trl_grpo"),
    (
        "pairs",
        "test_sft",
        "test_grpo",
        "test_trl_grpo",
        "rloo",
        "ppo",
        "dapo",
        "dpo",
        "trl_dpo",
        "tools",
        "digest",
        "digest_ppo",
        "code",
        "test_trl_sft",
        *VARIANTS,
    ),
)
SIDE_BY_SIDE = (*PHASES[1], *PHASES[3])
NEEDS = {"dpo": "pairs", "trl_dpo": "pairs", "digest_ppo": "digest"}
SEEDED = (*RL, *VARIANTS, "trl_grpo")  # once for every seed
SEEDS = (1, 2, 3)
LEARNING_RATES = (1e-5, 3e-5, 1e-4)  # of the pilot
# The pairs of the reward model, many or few, the coefficient of KL in the reward, and what else is changed. Remedies
# were added when PPO had learned not to end in its first steps on the reward model from few pairs.
REMEDIES: tuple[dict[str, float | str], ...] = (
    {"update.critic_warmup_steps": 10},
    {"model.critic_from": "sft"},
    {"cells.advantage.lam": 1.0},
)
DIGEST_CELLS: tuple[tuple[str, float, dict[str, float | str]], ...] = (
    ("many", 0.1, {}),
    ("many", 0.0, {}),
    ("few", 0.1, {}),
    ("few", 0.0, {}),
    *(("few", 0.1, each) for each in REMEDIES),
    *(("few", 0.1, {**each, "seed": 2}) for each in ({}, *REMEDIES)),
)
# The dtype of the weights, and where the float32 ones start: at the bfloat16 files of SFT's model, or at its masters.
DPO_CELLS = (("bfloat16", "files"), ("float32", "files"), ("bfloat16", "masters"))
CELLS = {  # stages with a number in place of a seed
    "pilot": len(LEARNING_RATES),
    "digest_ppo": len(DIGEST_CELLS),
    "dpo": len(DPO_CELLS),
    "trl_dpo": len(DPO_CELLS),
}


@dataclass(frozen=True)
class Settings:
    """The budget of every stage. `tiny` is a trial of the scripts on a CPU, not a measurement."""

    train_rows: int = 7473
    test_rows: int = 1319
    samples: int = 8  # of mean@8

    sft_epochs: int = 2
    sft_batch: int = 64
    sft_learning_rate: float = 1e-4

    steps: int = 32
    trl_steps: int = 24
    extra_steps: int = 24  # of pilot, tools, code
    save_every: int = 8
    prompts: int = 64
    group: int = 8
    max_new_tokens: int = 192
    pilot_questions: int = 1024
    pilot_samples: int = 4
    critic_learning_rate: float = 5e-5
    trl_rows: int = 64  # completions that go through TRL's model at a time

    dpo_prompts: int = 7473
    dpo_samples: int = 8
    dpo_batch: int = 32
    dpo_beta: float = 0.1
    dpo_learning_rate: float = 3e-5

    digest_pairs: int = 2560
    digest_few: int = 256
    digest_steps: int = 120
    digest_prompts: int = 128
    digest_heldout: int = 256
    code_numbers: int = 15  # of every kind of function
    dtype: str = "bfloat16"
    max_tokens: int = 1024  # the longest solution with calls has some 800

    @property
    def sft_steps(self) -> int:
        return self.sft_epochs * (self.train_rows // self.sft_batch)


TINY = replace(
    Settings(),
    train_rows=16,
    test_rows=4,
    samples=2,
    sft_epochs=1,
    sft_batch=4,
    steps=2,
    trl_steps=2,
    extra_steps=1,
    save_every=1,
    pilot_questions=4,
    pilot_samples=2,
    prompts=2,
    group=2,
    max_new_tokens=8,
    trl_rows=2,
    dpo_prompts=4,
    dpo_samples=2,
    dpo_batch=2,
    digest_pairs=16,
    digest_few=8,
    digest_steps=2,
    digest_prompts=2,
    digest_heldout=4,
    code_numbers=5,
    dtype="float32",
)


@dataclass(frozen=True)
class Study:
    """Where things are: the model, GSM8K's parquet files, what is written on the way, and the results."""

    model: Path
    data: Path
    work: Path
    out: Path
    settings: Settings

    def name(self, stage: str, seed: int | None) -> str:
        return stage if seed is None else f"{stage}-{seed}"

    def result(self, stage: str, seed: int | None = None) -> Path:
        return self.out / f"{self.name(stage, seed)}.json"

    def folder(self, stage: str, seed: int | None = None) -> Path:
        return self.work / self.name(stage, seed)

    def points(self, stage: str, seed: int | None = None) -> Path:
        """Folders by step, each with a model to test."""
        return self.work / "points" / self.name(stage, seed)

    @property
    def learning_rate(self) -> float:
        """The pilot's choice."""
        paths = [self.result("pilot", place) for place in range(len(LEARNING_RATES))]
        missing = [path.name for path in paths if not path.exists()]
        if missing:
            raise ValueError(f"the pilot is not done ({', '.join(missing)}): run stage pilot first")
        found = [json.loads(path.read_text()) for path in paths]
        return float(max(found, key=lambda each: each["accuracy"])["learning_rate"])

    @property
    def sft(self) -> Path:
        """The model that RL and DPO start from: ours after SFT, its float32 masters, as a folder of transformers."""
        return self.work / "sft-model"

    @property
    def sft_bfloat16(self) -> Path:
        """The same model as the run saved it."""
        return self.work / "sft-bfloat16"

    def dpo_start(self, cell: int) -> Path:
        return self.sft if DPO_CELLS[cell][1] == "masters" else self.sft_bfloat16

    def write(self, stage: str, seed: int | None, found: dict[str, object]) -> None:
        record = {"stage": stage, "seed": seed, "settings": asdict(self.settings), **found}
        self.result(stage, seed).write_text(json.dumps(record, indent=1) + "\n")
