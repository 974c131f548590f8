"""Cross-peer cases: the same inputs through several peers. Each peer's answer becomes an ordinary case of that peer.

A topic says what was computed; the label of an answer says which peer and which of its options. Both are translated
into the function, inputs, options and expected names that the peer's own adapter knows, so no convention is expressed
twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tests.golden.cases import Case, Recorded
from tests.golden.cross_peer_policy import (
    Builder,
    openrlhf,
    openrlhf_advantage,
    swift,
    swift_advantage,
    trl,
    trl_advantage,
    verl,
    verl_advantage,
    verl_gdpo,
    verl_tokens,
)
from tests.golden.cross_peer_rest import (
    controller,
    kl_of,
    openrlhf_dpo,
    openrlhf_kl,
    openrlhf_kto,
    openrlhf_reward,
    openrlhf_value,
    swift_weights,
    trl_dpo,
    trl_kto,
    trl_reward,
    verl_kl,
    verl_value,
    verl_weights,
)

NO_DUAL_CLIP = 1e9


def answers(case: Case) -> list[Case]:
    """One ordinary case for each peer that answered."""
    head = re.split(r" \(| label_smoothing", case.kind)[0]
    parts = []
    for label, expected in case.expected.items():
        if label not in TOPICS.get(head, {}):
            raise KeyError(f"topic {head!r}, answer {label!r}: no adapter is known for it")
        built = TOPICS[head][label](case.inputs.entries, case.params.entries, expected)
        dtype = case.dtype_words if case.dtype_words != "float64" else built.dtype
        parts.append(
            Case(
                case.file,
                f"{case.name} [{label}]",
                case.family,
                built.function,
                case.kind,
                Recorded(built.inputs),
                Recorded(built.params),
                built.expected,
                dtype,
                built.where,
            )
        )
    return parts


TOPICS: Mapping[str, Mapping[str, Builder]] = {
    "ppo token-mean": {
        "verl vanilla token-mean (dual clip c=3, default)": verl("vanilla", "token-mean"),
        "verl vanilla token-mean (c=1e9)": verl("vanilla", "token-mean", cap=NO_DUAL_CLIP),
        "trl bnpo": trl("bnpo"),
        "trl dapo": trl("dapo"),
        "openrlhf ppo token": openrlhf("ppo", per_token=True),
        "openrlhf ppo token dual_clip=3": openrlhf("ppo", per_token=True, cap=3.0),
        "ms-swift bnpo": swift("bnpo"),
    },
    "ppo seq-mean-token-mean": {
        "verl vanilla seq-mean-token-mean (c=1e9)": verl(
            "vanilla", "seq-mean-token-mean", cap=NO_DUAL_CLIP
        ),
        "trl grpo": trl("grpo"),
        "openrlhf ppo sample": openrlhf("ppo", per_token=False),
        "ms-swift grpo": swift("grpo"),
    },
    "dr_grpo": {
        "verl seq-mean-token-sum-norm (scale = padded width)": verl(
            "vanilla", "seq-mean-token-sum-norm", cap=NO_DUAL_CLIP
        ),
        "trl dr_grpo (max_completion_length = padded width)": trl("dr_grpo"),
        "trl dr_grpo (max_completion_length=32)": trl("dr_grpo", longest=32),
        "ms-swift dr_grpo (padded width)": swift("dr_grpo"),
    },
    "gspo": {
        "verl gspo seq-mean-token-mean": verl("gspo", "seq-mean-token-mean"),
        "trl grpo sequence": trl("grpo", level="sequence"),
        "openrlhf gspo": openrlhf("gspo", per_token=False),
        "ms-swift grpo sequence": swift("grpo", level="sequence"),
        "ms-swift grpo sequence_token": swift("grpo", level="sequence_token"),
    },
    "cispo": {
        "verl cispo low=1 high=4 (ratio in [0,5])": verl("cispo", "token-mean", low=1.0, high=4.0),
        "verl cispo low=0.2 high=0.28": verl("cispo", "token-mean", low=0.2, high=0.28),
        "trl cispo epsilon_high=5 (ratio <= 5)": trl("cispo", high=5.0),
        "trl cispo epsilon_high=0.28 (ratio <= 0.28)": trl("cispo", high=0.28),
        "ms-swift cispo epsilon_high=5": swift("cispo", high=5.0),
    },
    "sapo": {
        "verl sapo": verl("sapo", "seq-mean-token-mean"),
        "trl sapo": trl("sapo"),
        "ms-swift sapo": swift("sapo"),
    },
    "gmpo": {"verl geo_mean": verl("geo_mean", "token-mean"), "trl gmpo": trl("gmpo")},
    "grpo advantage": {
        "verl grpo (eps 1e-6)": verl_advantage("grpo", std=True),
        "verl grpo_vectorized (float32)": verl_advantage(
            "grpo_vectorized", std=True, dtype="float32"
        ),
        "trl grpo group (eps 1e-4)": trl_advantage("grpo"),
        "openrlhf group_norm (eps 1e-9)": openrlhf_advantage("group_norm"),
        "ms-swift grpo group (eps 1e-4)": swift_advantage("grpo", "group"),
    },
    "rloo advantage": {
        "verl rloo": verl_advantage("rloo"),
        "verl rloo_vectorized": verl_advantage("rloo_vectorized"),
        "trl rloo": trl_advantage("rloo"),
        "openrlhf rloo": openrlhf_advantage("rloo"),
        "ms-swift rloo none": swift_advantage("rloo", "none"),
    },
    "groups of one": {
        "verl grpo": verl_advantage("grpo", std=True),
        "verl grpo_vectorized": verl_advantage("grpo_vectorized", std=True, dtype="float32"),
        "verl rloo": verl_advantage("rloo"),
        "verl rloo_vectorized": verl_advantage("rloo_vectorized"),
        "verl opo": verl_advantage("opo"),
        "ms-swift dynamic grpo": swift_advantage("grpo", "group", ragged=True),
        "ms-swift dynamic rloo": swift_advantage("rloo", "none", ragged=True),
    },
    "all-equal groups in float32": {
        "verl grpo (eps 1e-6)": verl_advantage("grpo", std=True),
        "verl grpo_vectorized": verl_advantage("grpo_vectorized", std=True),
        "openrlhf group_norm (eps 1e-9)": openrlhf_advantage("group_norm"),
        "trl-style eps 1e-4 via ms-swift grpo": swift_advantage("grpo", "group"),
    },
    "reinforce++ advantage": {
        "verl reinforce_plus_plus (unbiased var)": verl_tokens(
            "reinforce_plus_plus_outcome_advantage", ("gamma",)
        ),
        "openrlhf reinforce (biased var)": openrlhf_advantage("reinforce"),
    },
    "reinforce++-baseline advantage": {
        "verl reinforce_plus_plus_baseline": verl_advantage("reinforce_plus_plus_baseline"),
        "openrlhf reinforce_baseline": openrlhf_advantage("reinforce_baseline"),
        "ms-swift reinforce_plus_plus batch": swift_advantage("reinforce_plus_plus", "batch"),
    },
    "gae": {
        "verl gae": verl_tokens("gae_advantage_return", ("gamma", "lam")),
        "openrlhf gae": openrlhf_advantage("gae"),
    },
    "gdpo advantage": {
        "verl gdpo (whitened over tokens)": verl_gdpo,
        "ms-swift gdpo (normalised over sequences)": swift_advantage("grpo", "gdpo"),
    },
    "k3 KL": {
        "verl low_var_kl": verl_kl,
        "openrlhf k3 (float32)": openrlhf_kl,
        "trl grpo kl (x n tokens)": kl_of(trl("bnpo")),
        "ms-swift grpo kl (x n tokens)": kl_of(swift("bnpo")),
    },
    "rollout importance weights": {
        "verl token 2.0": verl_weights("token"),
        "ms-swift token_truncate 2.0": swift_weights("token_truncate"),
        "verl sequence 2.0 (product)": verl_weights("sequence"),
        "ms-swift sequence_truncate 2.0 (geometric mean)": swift_weights("sequence_truncate"),
    },
    "off-policy sequence mask": {
        "trl grpo off_policy_mask": trl("grpo"),
        "ms-swift grpo off_policy_sequence_mask": swift("grpo"),
        "trl bnpo off_policy_mask": trl("bnpo"),
        "ms-swift bnpo off_policy_sequence_mask": swift("bnpo"),
    },
    "rollout IS weight and KL term": {
        "trl grpo beta + token_truncate": trl("grpo"),
        "ms-swift grpo beta + token_truncate": swift("grpo"),
    },
    "dpo": {
        "trl sigmoid": trl_dpo("sigmoid"),
        "trl robust": trl_dpo("robust"),
        "openrlhf DPOLoss": openrlhf_dpo(ipo=False),
    },
    "ipo": {
        "trl ipo (length-normalised)": trl_dpo("ipo"),
        "openrlhf DPOLoss(ipo) on summed log-probs": openrlhf_dpo(ipo=True),
        "openrlhf DPOLoss(ipo) on mean log-probs": openrlhf_dpo(ipo=True, mean=True),
    },
    "kto": {"trl kto": trl_kto, "openrlhf 0.9.6 KTOLoss": openrlhf_kto},
    "reward model": {
        "trl": trl_reward(margin=False),
        "trl margin": trl_reward(margin=True),
        "openrlhf PairWiseLoss": openrlhf_reward("PairWiseLoss", margin=False),
        "openrlhf PairWiseLoss margin": openrlhf_reward("PairWiseLoss", margin=True),
        "openrlhf LogExpLoss": openrlhf_reward("LogExpLoss", margin=False),
    },
    "clipped value loss": {
        "verl compute_value_loss": verl_value,
        "openrlhf ValueLoss": openrlhf_value,
    },
    "adaptive KL controller": {
        "verl": controller("core_algos.get_kl_controller"),
        "openrlhf": controller("openrlhf.trainer.ppo_utils.kl_controller.AdaptiveKLController"),
    },
    "fully masked micro-batch": {
        "verl token-mean": verl("vanilla", "token-mean"),
        "verl seq-mean-token-mean": verl("vanilla", "seq-mean-token-mean"),
        "trl bnpo": trl("bnpo"),
        "trl grpo": trl("grpo"),
        "trl dapo": trl("dapo"),
        "openrlhf token": openrlhf("ppo", per_token=True),
        "openrlhf sample": openrlhf("ppo", per_token=False),
        "ms-swift bnpo": swift("bnpo"),
        "ms-swift dapo": swift("dapo"),
    },
}
