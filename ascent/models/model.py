"""The model class: one packed forward with the requested outputs, its trainable weights, and saving."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import (
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import GENERATION_CONFIG_NAME

from ascent.models import adapters, forward, heads
from ascent.models.fused_logprobs import BUDGET_BYTES
from ascent.models.head import Head
from ascent.models.hf_logging import quiet_transformers
from ascent.models.layer_patching import FAST, kernels_of
from ascent.models.routing import EXPERTS, ROUTES_CHANGED, Routes, RoutingReplay

if TYPE_CHECKING:
    from peft import PeftModel

TOKEN_OUTPUTS = frozenset({"logprobs_T", "entropy_T", "log_collision_T"})
LOGITS = frozenset(
    {"logits_TV"}
)  # a `ChunkedLogits`, not a tensor: the matrix of all logits never exists
SCALAR_OUTPUTS = frozenset({"scores_B", "values_T", "step_logits_TC"})
WANTS = TOKEN_OUTPUTS | LOGITS | SCALAR_OUTPUTS


@dataclass
class LanguageModel:
    """A transformers model with its tokenizer. Make one with `load`.

    `module` is a causal model or a sequence classifier with one label; `value_head` is the second head of a causal
    model whose trunk also serves a critic. With LoRA the layers inside `module` carry the adapter, and `adapter` can
    switch it off. `notes` says what was decided while loading, one sentence each. `routes` is set if the experts
    recorded while sampling are replayed in training. `origin` is the folder or hub name that it was loaded from. Of a
    model that is divided over ranks, `root` is the module that gathers its weights.
    """

    module: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    value_head: nn.Linear | None = None
    adapter: PeftModel | None = None
    budget_bytes: int = BUDGET_BYTES
    gradient_checkpointing: bool = False
    notes: tuple[str, ...] = ()
    routes: Routes | None = None
    origin: str = ""
    root: nn.Module | None = None

    def __post_init__(self) -> None:
        if self.gradient_checkpointing:
            forward.enable_gradient_checkpointing(self.module)

    @property
    def exact(self) -> bool:
        """Whether sampling and training give equal log-probs on CUDA, bit for bit."""
        return kernels_of(self.module).exact

    @property
    def offers(self) -> frozenset[str]:
        """The outputs that the model's heads can compute."""
        tokens = self.module.get_output_embeddings() is not None
        return (TOKEN_OUTPUTS | LOGITS if tokens else frozenset()) | (
            SCALAR_OUTPUTS if self._scalar_head() is not None else frozenset()
        )

    def outputs(
        self, batch: forward.Batch, want: frozenset[str], temperature: float = 1.0
    ) -> dict[str, Any]:
        """One forward over a packed batch (`tokens_T`, `positions_T`, `segments`, and optionally
        `loss_mask_T`).

        Log-probs, entropy and collision are those of softmax(logits / temperature), in float32, aligned with tokens.
        With recorded experts (`routed_experts_TLC`) also `policy/routes_changed_frac`: how many of them the routers
        would not choose any more, and how many there are.
        """
        found: dict[str, Any] = (self.run if self.root is None else self.root)(
            batch, want, temperature
        )
        return found

    def run(self, batch: forward.Batch, want: frozenset[str], temperature: float) -> dict[str, Any]:
        """`outputs`, with all weights at hand."""
        self._check(want)
        segments, replay = batch["segments"], self._replay(batch)
        experts_TLC = None if replay is None else replay.experts_TLC
        plan = (
            batch["plan"]()
            if "plan" in batch
            else forward.plan_forward(batch, self.device, experts_TLC=experts_TLC)
        )
        max_len = max_sequence_length(self.module.config)
        hidden_UD = forward.hidden_states(
            self.module.base_model, batch, plan, max_len=max_len, replay=replay
        )
        out: dict[str, Any] = {}
        if want & TOKEN_OUTPUTS:
            out |= forward.token_outputs(
                *(hidden_UD, batch, plan, output_head(self.module)),
                temperature=temperature,
                entropy="entropy_T" in want,
                collision="log_collision_T" in want,
                budget_bytes=self.budget_bytes,
            )
        if want & LOGITS:
            out["logits_TV"] = forward.chunked_logits(
                *(hidden_UD, plan, output_head(self.module)),
                temperature=temperature,
                budget_bytes=self.budget_bytes,
            )
        if want & SCALAR_OUTPUTS:
            scalar_head = self._scalar_head()
            assert scalar_head is not None
            if "values_T" in want:
                out["values_T"] = forward.values(hidden_UD, plan, segments, scalar_head)
            if "step_logits_TC" in want:
                out["step_logits_TC"] = forward.step_logits(hidden_UD, plan, scalar_head)
            if "scores_B" in want:
                out["scores_B"] = forward.sequence_scores(hidden_UD, plan, segments, scalar_head)
        found = {name: out[name] for name in want}
        return found if replay is None else {**found, ROUTES_CHANGED: replay.changed_2}

    def _replay(self, batch: forward.Batch) -> RoutingReplay | None:
        if self.routes is None or EXPERTS not in batch:
            return None
        experts_TLC = batch[EXPERTS]
        if experts_TLC.dtype != self.routes.dtype or experts_TLC.shape[1:] != self.routes[:2]:
            raise ValueError(
                f"{EXPERTS} holds {tuple(experts_TLC.shape)} {experts_TLC.dtype}, the model routes {self.routes}; they "
                "were recorded with another model"
            )
        return RoutingReplay(experts_TLC)

    def _check(self, want: frozenset[str]) -> None:
        if not want or want - self.offers:
            raise ValueError(
                f"want={sorted(want)}: {type(self.module).__name__} offers {sorted(self.offers)}; choose from "
                "these, or load the model with another head (tokens, scalar, both)"
            )
        if self.gradient_checkpointing and torch.is_grad_enabled() and not self.module.training:
            raise ValueError(
                "gradient_checkpointing=True has no effect on a model in eval mode, so memory would not be saved; call "
                "model.train() before a forward with gradients"
            )

    @property
    def normalization(self) -> heads.Normalization | None:
        """The statistics of a reward model's scores over the centering data; saved in its configuration."""
        return heads.normalization_of(self.module.config)

    @normalization.setter
    def normalization(self, found: heads.Normalization | None) -> None:
        heads.set_normalization(self.module.config, found)

    @property
    def step_format(self) -> heads.StepFormat | None:
        """How a process reward model splits answers; saved in its configuration, None for other models."""
        return heads.step_format_of(self.module.config)

    @step_format.setter
    def step_format(self, found: heads.StepFormat | None) -> None:
        heads.set_step_format(self.module.config, found)

    def _scalar_head(self) -> nn.Linear | None:
        if self.value_head is not None or self.module.get_output_embeddings() is not None:
            return self.value_head
        return heads.score_layer(self.module)

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The trainable weights (with LoRA: the adapter's), under stable names; tied ones once."""
        parts: dict[str, nn.Module] = {"module": self.module}
        if self.value_head is not None:
            parts["value_head"] = self.value_head
        for prefix, part in parts.items():
            yield from (
                (f"{prefix}.{name}", each)
                for name, each in part.named_parameters()
                if each.requires_grad
            )

    def modules(self) -> Iterator[nn.Module]:
        yield from self.module.modules()
        if self.value_head is not None:
            yield self.value_head

    def parameters(self) -> Iterator[nn.Parameter]:
        return (each for _, each in self.named_parameters())

    def train(self, mode: bool = True) -> LanguageModel:
        (self.module if self.root is None else self.root).train(mode)
        return self

    def eval(self) -> LanguageModel:
        return self.train(False)

    @property
    def device(self) -> torch.device:
        return self.module.device

    def to_host(self) -> None:
        """Move all weights to the memory of the CPU."""
        for part in filter(None, (self.module, self.value_head)):
            nn.Module.to(part, "cpu")

    def add_stop_ids(self, ids: Iterable[int]) -> None:
        """Let `generate` of the saved model also stop at these tokens."""
        generation = generation_config(self.module)
        if generation is not None:
            own = generation.eos_token_id
            found = sorted(
                {*ids, *(own if isinstance(own, list) else () if own is None else (own,))}
            )
            generation.eos_token_id = found if len(found) > 1 else found[0]

    def save(self, folder: str | Path) -> None:
        """Write a Hugging Face folder that loads without Ascent; with LoRA, the adapter in peft's layout.

        The base of an adapter is named, not copied. `load` merges both.
        """
        folder = Path(folder)
        with quiet_transformers():
            if self.adapter is not None:
                adapters.save(self.adapter, folder, self.origin)
            else:
                save_module(self.module, folder)
        self.tokenizer.save_pretrained(folder)
        if self.value_head is not None:
            heads.save_head(self.value_head, folder / heads.VALUE_HEAD_FILE)


def generation_config(module: PreTrainedModel) -> GenerationConfig | None:
    """None for a model without a language-model head."""
    return module.generation_config if module.can_generate() else None


def save_module(module: PreTrainedModel, folder: Path) -> None:
    """`save_pretrained`, with the generation config as it is.

    transformers only warns when it reads a temperature without do_sample, which published models have, but refuses to
    write it.
    """
    generation = generation_config(module)
    if generation is None:
        module.save_pretrained(folder)
        return
    module.generation_config = type(generation)()
    try:
        module.save_pretrained(folder)
    finally:
        module.generation_config = generation
    generation.to_json_file(folder / GENERATION_CONFIG_NAME, keys_to_pop=["compile_config"])


def output_head(module: PreTrainedModel) -> Head:
    """The language-model head, with the architecture's scale and soft cap."""
    layer = module.get_output_embeddings()
    if not isinstance(layer, nn.Linear):
        raise ValueError(
            f"{type(module).__name__} has {type(layer).__name__} where a plain linear head is expected; an adapter on "
            "the head is not supported: leave lm_head out of LoRA's targets"
        )
    config = module.config.get_text_config()
    scale = getattr(config, "logit_scale", None) or 1 / (
        getattr(config, "logits_scaling", None) or 1
    )
    kernels = getattr(layer, "kernels", FAST)
    return Head(
        layer.weight, layer.bias, scale, getattr(config, "final_logit_softcapping", None), kernels
    )


def max_sequence_length(config: PreTrainedConfig) -> int | None:
    """The model's context length; None if the config has no limit.

    Rotary embeddings of type dynamic and longrope change for the whole batch when one sequence exceeds the original
    context length; packed with others it would change them, so that length is the limit.
    """
    text: Any = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("dynamic", "longrope"):
        limit = rope.get("original_max_position_embeddings") or getattr(
            text, "original_max_position_embeddings", None
        )
        if limit is not None:
            return int(limit)
    limit = getattr(text, "max_position_embeddings", None)
    return None if limit is None else int(limit)
