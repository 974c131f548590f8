"""Names of settings in TRL, verl, OpenRLHF and ms-swift, and what is written here. docs/coming-from has all of them.

A name stands for every key that ends in it: `response_length` for `actor_rollout_ref.rollout.response_length`, too.
"""

from __future__ import annotations

# The same value under another key.
KEYS = {
    "n_samples_per_prompt": "rollouts.group_size",
    "num_generations": "rollouts.group_size",
    "rollout.n": "rollouts.group_size",
    "rollouts.n": "rollouts.group_size",
    "max_completion_length": "rollouts.max_new_tokens",
    "max_response_length": "rollouts.max_new_tokens",
    "response_length": "rollouts.max_new_tokens",
    "max_prompt_length": "data.max_prompt_tokens",
    "dataset": "data.train",
    "train_dataset": "data.train",
    "train_files": "data.train",
    "eval_dataset": "data.evaluate",
    "val_dataset": "data.evaluate",
    "val_files": "data.evaluate",
    "model_name_or_path": "model.policy",
    "torch_dtype": "model.dtype",
    "lora_rank": "model.lora",
    "lr_scheduler_type": "update.schedule",
    "num_iterations": "update.epochs",
    "ppo_epochs": "update.epochs",
    "clip_ratio_high": "cells.policy_loss.high",
    "clip_ratio_low": "cells.policy_loss.low",
    "epsilon_high": "cells.policy_loss.high",
    "kl_loss_coef": "cells.kl.weight",
    "max_steps": "run.steps",
    "save_freq": "run.save_every",
    "save_steps": "run.save_every",
    "eval_steps": "run.evaluate_every",
    "test_freq": "run.evaluate_every",
    "save_total_limit": "run.keep",
}

_CLIP = "write cells.policy_loss.low and cells.policy_loss.high; they have values of their own"
_IN_STEPS = "write update.warmup_steps, a number of steps"
_MICROBATCHES = (
    "micro-batches follow from update.tokens_per_microbatch; nothing is accumulated by hand"
)
_PASSES = "write data.epochs for an algorithm that trains on files, else run.steps"
_RESUME = "ascent resume RUN continues a run"
_STEP = "write data.batch_size (records of a step) or rollouts.prompts_per_step (prompts of a step)"
_TRACKERS = "write run.trackers, a list: [tensorboard], [wandb] or both"

# Another value, a choice, or nothing to set.
REMARKS = {
    "attn_implementation": "no such setting: the attention kernel follows from the device, the dtype and the model",
    "beta": "write cells.kl.weight for the KL term of GRPO, cells.loss.beta for DPO",
    "bf16": "write model.dtype=bfloat16",
    "clip_ratio": _CLIP,
    "epsilon": _CLIP,
    "eps_clip": _CLIP,
    "gradient_accumulation_steps": _MICROBATCHES,
    "init_kl_coef": "write cells.reward_shaping.kl_penalty.beta (in the reward) or cells.kl.weight (in the loss)",
    "kl_coef": "write cells.reward_shaping.kl_penalty.beta (in the reward) or cells.kl.weight (in the loss)",
    "logging_steps": "there is no such setting: every step is logged",
    "lora_target_modules": "there is no such setting: the adapter of model.lora is on every linear layer",
    "loss_type": "algorithm chooses the loss; cells.policy_loss.use, cells.aggregation.use or cells.loss.use change it",
    "lr_warmup_ratio": _IN_STEPS,
    "max_length": "write data.max_tokens (records of files), data.max_prompt_tokens or rollouts.max_new_tokens",
    "micro_batch_size": _MICROBATCHES,
    "num_train_epochs": _PASSES,
    "output_dir": "the run folder is --run FOLDER, in Python run=FOLDER",
    "peft_config": "write model.lora (the rank) and model.lora_alpha",
    "per_device_train_batch_size": f"{_STEP}; {_MICROBATCHES}",
    "ppo_micro_batch_size_per_gpu": _MICROBATCHES,
    "ppo_mini_batch_size": "write update.minibatches, a number: rollouts.prompts_per_step / ppo_mini_batch_size",
    "report_to": _TRACKERS,
    "resume": _RESUME,
    "resume_from_checkpoint": _RESUME,
    "reward_funcs": "write rewards, a list: [{use: mathematics}], [{use: file.py:function}]",
    "scale_rewards": "write cells.advantage_norm.use: group_std, batch_std_raw or none",
    "target_modules": "there is no such setting: the adapter of model.lora is on every linear layer",
    "total_epochs": _PASSES,
    "train_batch_size": _STEP,
    "trainer.logger": _TRACKERS,
    "warmup_ratio": _IN_STEPS,
}

# Arguments of `ascent.train`.
ARGUMENTS = {
    "eval_dataset": "eval_data",
    "output_dir": "run",
    "processing_class": "tokenizer",
    "reward_funcs": "rewards",
    "train_dataset": "data",
}


def peer_key(path: str) -> str:
    """The key that has this name elsewhere, or nothing."""
    return _find(KEYS, path)


def peer_remark(path: str) -> str:
    """What to do where no key takes the value as it is, or nothing."""
    return _find(REMARKS, path)


def _find(table: dict[str, str], path: str) -> str:
    parts = path.split(".")
    endings = (".".join(parts[start:]) for start in range(len(parts)))
    return next((table[ending] for ending in endings if ending in table), "")
