"""Preference pairs for DPO: of the SFT model's own samples, a correct one is preferred to a wrong one."""

from __future__ import annotations

import json
from typing import Any

from data import write_rows
from reward import is_correct
from settings import Study

import ascent


def pairs(study: Study) -> dict[str, Any]:
    """One pair of every question that has both, in the order of the training prompts, and no more than fill a batch:
    TRL's last batch would be smaller, ours takes the first pairs again."""
    settings = study.settings
    lines = (study.work / "data/prompts-1.jsonl").read_text().splitlines()[: settings.dpo_prompts]
    rows = [json.loads(line) for line in lines]
    policy = ascent.Policy(
        str(study.sft), dtype=settings.dtype, max_new_tokens=settings.max_new_tokens, seed=1
    )
    rollouts = policy.sample([row["prompt"] for row in rows], n=settings.dpo_samples)
    found = []
    for place, row in enumerate(rows):
        texts = [
            each.text
            for each in rollouts[place * settings.dpo_samples : (place + 1) * settings.dpo_samples]
        ]
        right = [text for text in texts if is_correct(text, row["answer"])]
        wrong = [text for text in texts if not is_correct(text, row["answer"])]
        if settings.dtype == "float32" and not right:  # the trial's model is never right
            right = [f"#### {row['answer']}"]
        if right and wrong:
            answers = {"chosen": right[0], "rejected": wrong[0]}
            made = {
                name: [{"role": "assistant", "content": text}] for name, text in answers.items()
            }
            found.append({"prompt": row["prompt"], **made})
    whole = len(found) // settings.dpo_batch * settings.dpo_batch
    write_rows(study.work / "data/pairs.jsonl", found[:whole])
    return {"questions": len(rows), "pairs": len(found), "used": whole}
