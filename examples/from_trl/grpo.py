"""GRPO with a reward function, as a script of TRL becomes one of Ascent (docs/coming-from/trl.md)."""

from datasets import load_dataset

import ascent

dataset = load_dataset("trl-lib/DeepMath-103K", split="train")


def boxed(completions, solution, **kwargs):
    """1 where the last boxed text of an answer is the solution."""
    texts = [completion[0]["content"] for completion in completions]
    found = [text.rpartition("\\boxed{")[2].partition("}")[0] for text in texts]
    return [float(each == right) for each, right in zip(found, solution, strict=True)]


def brief(completions, **kwargs):
    """Shorter answers are a little better."""
    return [1 / (1 + len(completion[0]["content"])) for completion in completions]


ascent.train(
    "grpo",
    {"rollouts": {"prompts_per_step": 4, "group_size": 8, "max_new_tokens": 256}, "run.steps": 200},
    model="Qwen/Qwen2.5-0.5B-Instruct",
    data=dataset,
    rewards=[boxed, (brief, 0.1)],
    run="runs/grpo",
)
