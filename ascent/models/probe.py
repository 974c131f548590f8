"""Checks of a loaded model on eight tokens: can it be trained on packed batches?

An architecture may do things that packing would silently break: mix tokens outside attention (recurrent layers), build
masks of its own, cap its logits, or not use transformers' attention interface at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from ascent.maths.segments import Segments
from ascent.models.attention import AttentionCall, PackedContext, attention_context, packed_context
from ascent.models.fused_logprobs import fused_logprobs
from ascent.models.head import Head
from ascent.models.routing import Routes, RoutingRecorder, RoutingReplay, no_expert, routing

LAYER_TYPES = {"full_attention", "sliding_attention"}
FIRST_LEN, SECOND_LEN = 5, 3  # tokens of the two sequences of the probe


def check_config(config: PreTrainedConfig, source: object) -> None:
    """Refuse models that the configuration shows to be unsupported."""
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"{source} is an encoder-decoder ({config.model_type}); only decoder-only models are trained"
        )
    if getattr(config, "quantization_config", None):
        raise ValueError(
            f"{source} holds quantized weights, which cannot be trained; load it dequantized and save it"
        )
    unsupported = sorted(
        set(getattr(config.get_text_config(), "layer_types", None) or ()) - LAYER_TYPES
    )
    if unsupported:
        raise ValueError(
            f"{source} ({config.model_type}) has layers of kind {', '.join(unsupported)}; packed training supports "
            f"{' and '.join(sorted(LAYER_TYPES))}"
        )


@torch.no_grad()
def check_model(module: PreTrainedModel, head: Head | None) -> None:
    """Check attention layers, windows, independence of packed sequences, and the token head if there is one."""
    with _eval_mode(module):
        tokens_T = _probe_tokens(module)
        hidden_TD, calls = _run(module, tokens_T)
        _check_layers(module, calls)
        other_T = tokens_T.clone()
        other_T[:FIRST_LEN] = tokens_T[:FIRST_LEN].flip(0)
        _check_independence(module, hidden_TD[FIRST_LEN:], _run(module, other_T)[0][FIRST_LEN:])
        if head is not None:
            _check_head(module, hidden_TD, tokens_T, head)


@torch.no_grad()
def attention_calls(module: PreTrainedModel) -> list[AttentionCall]:
    """The attention call of each layer, in the order in which they run."""
    with _eval_mode(module):
        return _run(module, _probe_tokens(module))[1]


@torch.no_grad()
def check_routing(module: PreTrainedModel) -> Routes:
    """The shape of a token's experts; an error if a router cannot be made to choose given experts."""
    name = type(module).__name__
    tokens_T = _probe_tokens(module)

    def run(context: RoutingRecorder) -> Tensor:
        with routing(context):
            return _run(module, tokens_T)[0]

    recorded = RoutingRecorder()
    hidden_TD = run(recorded)
    shapes = {experts_TC.shape for experts_TC in recorded.experts.values()}
    if not shapes:
        raise ValueError(
            f"model.routing_replay=true, but {name} has no known router of experts; set it to false"
        )
    dtype = torch.uint8 if recorded.num_experts <= no_expert(torch.uint8) else torch.int16
    same, shifted = (
        RoutingReplay(((recorded.stacked(torch.int64) + n) % recorded.num_experts).to(dtype))
        for n in (0, 1)
    )
    reproduced = len(shapes) == 1 and torch.equal(run(same), hidden_TD)
    if not (
        reproduced
        and bool(run(shifted).isfinite().all())
        and torch.equal(shifted.stacked(dtype), shifted.experts_TLC)
    ):
        raise ValueError(
            f"the routers of {name} do not choose the experts they are given; set model.routing_replay=false"
        )
    return Routes(len(recorded.experts), next(iter(shapes))[1], dtype)


def embedding_rows(module: PreTrainedModel) -> int:
    """The number of token embeddings, often more than the tokenizer's vocabulary."""
    weight = module.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    return weight.shape[0]


@contextmanager
def _eval_mode(module: PreTrainedModel) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


def _probe_tokens(module: PreTrainedModel) -> Tensor:
    return torch.arange(2, 2 + FIRST_LEN + SECOND_LEN, device=module.device) % embedding_rows(
        module
    )


def _inputs(tokens_T: Tensor) -> dict[str, Tensor]:
    positions_T = torch.cat([torch.arange(FIRST_LEN), torch.arange(SECOND_LEN)]).to(tokens_T.device)
    return {"input_ids": tokens_T[None], "position_ids": positions_T[None]}


def _context(tokens_T: Tensor) -> PackedContext:
    return packed_context(Segments.from_lengths([FIRST_LEN, SECOND_LEN]), tokens_T.device)


def _run(module: PreTrainedModel, tokens_T: Tensor) -> tuple[Tensor, list[AttentionCall]]:
    calls: list[AttentionCall] = []
    with attention_context(replace(_context(tokens_T), calls=calls)):
        out = module.base_model(**_inputs(tokens_T), use_cache=False)
    return out.last_hidden_state[0], calls


def _check_layers(module: PreTrainedModel, calls: list[AttentionCall]) -> None:
    config = module.config.get_text_config()
    name, layers = type(module).__name__, config.num_hidden_layers
    if len(calls) != layers:
        raise ValueError(
            f"{name} has {layers} layers but called the attention interface {len(calls)} times; packed training needs "
            "an architecture in which every layer attends through it"
        )
    window = getattr(config, "sliding_window", None)
    layer_types = (
        getattr(config, "layer_types", None)
        or ["sliding_attention" if window else "full_attention"] * layers
    )
    expected = [window if kind == "sliding_attention" else None for kind in layer_types]
    if expected != [call.window for call in calls]:
        raise ValueError(
            f"{name} declares sliding windows {expected} but calls attention with {[call.window for call in calls]}; "
            "its windows are not supported"
        )


def _check_independence(module: PreTrainedModel, before_TD: Tensor, after_TD: Tensor) -> None:
    """Changing the first sequence must not change the second one. The tolerance is for mixtures of experts, where rows
    are grouped by expert."""
    if not bool(before_TD.isfinite().all()):
        raise ValueError(
            f"{type(module).__name__} gives NaN or infinite hidden states; its weights are damaged"
        )
    tolerance = 8 * torch.finfo(before_TD.dtype).eps * float(before_TD.abs().max())
    change = float((before_TD - after_TD).abs().max())
    if change > tolerance:
        raise ValueError(
            f"{type(module).__name__} lets one packed sequence change another (by {change:.2g}); it mixes tokens "
            "outside attention and cannot be trained on packed batches"
        )


def _check_head(module: PreTrainedModel, hidden_TD: Tensor, tokens_T: Tensor, head: Head) -> None:
    """Our log-probs must equal those of the model's own logits."""
    with attention_context(_context(tokens_T)):
        logits_TV = module(**_inputs(tokens_T), use_cache=False).logits[0]
    stock_T = logits_TV.float().log_softmax(-1).gather(1, tokens_T[:, None])[:, 0]
    fused_T = fused_logprobs(hidden_TD, tokens_T, head).logprobs_N
    tolerance = 1e-4 + 2 * torch.finfo(logits_TV.dtype).eps * float(logits_TV.abs().max())
    difference = float((stock_T - fused_T).abs().max())
    if difference > tolerance:
        raise ValueError(
            f"{type(module).__name__} transforms its logits in an unknown way: log-probs differ by "
            f"{difference:.2g}; supported are a linear head, a soft cap (final_logit_softcapping) and a scale"
        )
