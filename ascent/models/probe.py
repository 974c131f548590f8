"""Is this model what packed training takes it for? Asked when it is loaded, on a few tokens, before any training.

An architecture may do things that packing would silently break: mix tokens outside attention (recurrent layers), build
masks of its own, cap its logits, or not use transformers' attention interface at all. Eight tokens show it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from ascent.maths.segments import Segments
from ascent.models.attention import Call, attending, packed
from ascent.models.fused_logprobs import Head, fused_logprobs
from ascent.models.routing import Recording, Replay, Routes, missing, routing

LAYERS = {"full_attention", "sliding_attention"}
FIRST, SECOND = 5, 3  # tokens of the two sequences of the probe


def refuse_config(config: PreTrainedConfig, source: object) -> None:
    """What can be refused from the configuration alone."""
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{source} is an encoder-decoder ({config.model_type}); only decoder-only models are trained")
    if getattr(config, "quantization_config", None):
        raise ValueError(f"{source} holds quantised weights, which cannot be trained; load it dequantised and save it")
    strange = sorted(set(getattr(config.get_text_config(), "layer_types", None) or ()) - LAYERS)
    if strange:
        raise ValueError(
            f"{source} ({config.model_type}) has layers of kind {', '.join(strange)}; packed training supports "
            f"{' and '.join(sorted(LAYERS))}"
        )


@torch.no_grad()
def check_model(module: PreTrainedModel, head: Head | None) -> None:
    """Run the probe: attention layers, windows, independence of packed sequences, and the head where there is one."""
    training = module.training
    module.eval()
    try:
        tokens_T = torch.arange(2, 2 + FIRST + SECOND, device=module.device) % embedding_rows(module)
        segments = Segments.from_lengths([FIRST, SECOND])
        hidden_TD, calls = _run(module, tokens_T, segments)
        _check_layers(module, calls)
        other_T = tokens_T.clone()
        other_T[:FIRST] = tokens_T[:FIRST].flip(0)
        _check_apart(module, hidden_TD[FIRST:], _run(module, other_T, segments)[0][FIRST:])
        if head is not None:
            _check_head(module, hidden_TD, tokens_T, segments, head)
    finally:
        module.train(training)


@torch.no_grad()
def layer_calls(module: PreTrainedModel) -> list[Call]:
    """What each layer asks of attention, in the order in which they run."""
    training = module.training
    module.eval()
    try:
        tokens_T = torch.arange(2, 2 + FIRST + SECOND, device=module.device) % embedding_rows(module)
        return _run(module, tokens_T, Segments.from_lengths([FIRST, SECOND]))[1]
    finally:
        module.train(training)


@torch.no_grad()
def check_routing(module: PreTrainedModel) -> Routes:
    """The experts that tokens take, where every router can be made to take others; an error where one cannot."""
    name = type(module).__name__
    tokens_T = torch.arange(2, 2 + FIRST + SECOND, device=module.device) % embedding_rows(module)

    def run(context: Recording) -> Tensor:
        with routing(context):
            return _run(module, tokens_T, Segments.from_lengths([FIRST, SECOND]))[0]

    own = Recording()
    hidden_TD = run(own)
    shapes = {experts_TC.shape for experts_TC in own.experts.values()}
    if not shapes:
        raise ValueError(
            f"model.routing_replay=true, but {name} has no router of experts that is known here; set it to false"
        )
    dtype = torch.uint8 if own.most <= missing(torch.uint8) else torch.int16
    again, other = (Replay(((own.stacked(torch.int64) + n) % own.most).to(dtype)) for n in (0, 1))
    as_before = len(shapes) == 1 and torch.equal(run(again), hidden_TD)
    if not (as_before and bool(run(other).isfinite().all()) and torch.equal(other.stacked(dtype), other.given_TLC)):
        raise ValueError(
            f"the routers of {name} do not take the experts they are given; set model.routing_replay=false"
        )
    return Routes(len(own.experts), next(iter(shapes))[1], dtype)


def embedding_rows(module: PreTrainedModel) -> int:
    """How many tokens the model has an embedding for; often more than the tokenizer has."""
    weight = module.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    return weight.shape[0]


def _inputs(tokens_T: Tensor) -> dict[str, Tensor]:
    positions_T = torch.cat([torch.arange(FIRST), torch.arange(SECOND)]).to(tokens_T.device)
    return {"input_ids": tokens_T[None], "position_ids": positions_T[None]}


def _run(module: PreTrainedModel, tokens_T: Tensor, segments: Segments) -> tuple[Tensor, list[Call]]:
    calls: list[Call] = []
    with attending(replace(packed(segments, tokens_T.device), calls=calls)):
        out = module.base_model(**_inputs(tokens_T), use_cache=False)
    return out.last_hidden_state[0], calls


def _check_layers(module: PreTrainedModel, calls: list[Call]) -> None:
    config = module.config.get_text_config()
    name, layers = type(module).__name__, config.num_hidden_layers
    if len(calls) != layers:
        raise ValueError(
            f"{name} has {layers} layers but called the attention interface {len(calls)} times; packed training needs "
            "an architecture in which every layer attends through it"
        )
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"] * layers
    wanted = [window if kind == "sliding_attention" else None for kind in kinds]
    if wanted != [call.window for call in calls]:
        raise ValueError(
            f"{name} declares sliding windows {wanted} but asks attention for {[call.window for call in calls]}; "
            "its window cannot be honoured"
        )


def _check_apart(module: PreTrainedModel, alone_TD: Tensor, with_other_TD: Tensor) -> None:
    """Another first sequence must leave the second one alone. The shapes are equal, so are the bits; the slack is for
    mixtures of experts, where rows are grouped by expert."""
    if not bool(alone_TD.isfinite().all()):
        raise ValueError(f"{type(module).__name__} gives NaN or infinite hidden states; its weights are damaged")
    slack = 8 * torch.finfo(alone_TD.dtype).eps * float(alone_TD.abs().max())
    moved = float((alone_TD - with_other_TD).abs().max())
    if moved > slack:
        raise ValueError(
            f"{type(module).__name__} lets one packed sequence change another (by {moved:.2g}); it mixes tokens "
            "outside attention and cannot be trained on packed batches"
        )


def _check_head(module: PreTrainedModel, hidden_TD: Tensor, tokens_T: Tensor, segments: Segments, head: Head) -> None:
    """Our log-probs must be those of the model's own logits."""
    with attending(packed(segments, tokens_T.device)):
        logits_TV = module(**_inputs(tokens_T), use_cache=False).logits[0]
    own_T = logits_TV.float().log_softmax(-1).gather(1, tokens_T[:, None])[:, 0]
    ours_T = fused_logprobs(hidden_TD, tokens_T, head).logprobs_N
    slack = 1e-4 + 2 * torch.finfo(logits_TV.dtype).eps * float(logits_TV.abs().max())
    off = float((own_T - ours_T).abs().max())
    if off > slack:
        raise ValueError(
            f"{type(module).__name__} does something to its logits that is not known here: log-probs differ by "
            f"{off:.2g}; supported are a linear head, a soft cap (final_logit_softcapping) and a scale"
        )
