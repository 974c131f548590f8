"""Load a model: locate, check and patch it.

Only safetensors are loaded, remote code runs only with `trust_remote_code`, missing weights are an error (except a
scalar head, which is initialized from `seed` and noted), dropout is off by default.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ascent.models import adapters, attention, exact, heads, layer_patching
from ascent.models import quantize as quantizing
from ascent.models.dropout import disable_config_dropout, disable_dropout
from ascent.models.fused_logprobs import BUDGET_BYTES, CUDA_BUDGET_BYTES
from ascent.models.hf_logging import quiet_transformers
from ascent.models.locate import check_hub, resolve
from ascent.models.model import LanguageModel, output_head
from ascent.models.probe import check_config, check_model, check_routing, embedding_rows
from ascent.models.tokenizer import first_line, load_tokenizer, separate_padding

logger = logging.getLogger("ascent.models")

Heads = Literal["tokens", "scalar", "both"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
AUTO = {
    "tokens": AutoModelForCausalLM,
    "scalar": AutoModelForSequenceClassification,
    "both": AutoModelForCausalLM,
}


def load(
    source: str | Path,
    *,
    head: Heads = "tokens",
    dtype: str = "float32",
    device: str | torch.device = "cpu",
    dropout: bool = False,
    gradient_checkpointing: bool = False,
    seed: int = 0,
    trust_remote_code: bool = False,
    budget_bytes: int | None = None,
    routing_replay: bool = False,
    quantize: str | None = None,
    arithmetic: str = "fast",
) -> LanguageModel:
    """Load a folder, one of our runs, or a hub name. A LoRA adapter is merged into its base.

    `head`: tokens (a policy), scalar (a reward model or critic) or both (a policy whose trunk carries a critic).
    `dropout` keeps the model's dropout; otherwise every rate is set to 0. `gradient_checkpointing` saves memory by
    recomputing each layer in the backward pass. `seed` initializes the scalar head if the folder has none.
    `budget_bytes` is the memory for logits: 128 MiB, or 512 MiB on CUDA, by default. `routing_replay` replays the
    experts that the native engine recorded. `quantize="nf4"` stores the linear layers in 4 bits, frozen: attach LoRA to
    train such a model. `arithmetic="exact"`: sampling and training give equal log-probs, bit for bit (docs/exact.md).
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} is not supported; use {' or '.join(DTYPES)}")
    if head not in AUTO:
        raise ValueError(f"head={head!r} does not exist; use one of {', '.join(AUTO)}")
    exact.check_request(arithmetic, device=device, dtype=dtype, quantize=quantize, dropout=dropout)
    found = resolve(source)
    folder, origin = check_hub(found), str(found.absolute() if isinstance(found, Path) else found)
    notes = [f"model {source} is {folder}"] if str(folder) != str(Path(source).expanduser()) else []
    config, tokenizer = _config_and_tokenizer(folder, head, trust_remote_code)
    if not dropout:
        notes += disable_config_dropout(config)
    options = {"dtype": DTYPES[dtype], "trust_remote_code": trust_remote_code}
    module, fresh = _module(folder, config, head, options, quantize, device)
    notes += [] if quantize is None else [quantizing.note(module, quantize)]
    notes += _match_tokenizer(tokenizer, module, classifies=head == "scalar")
    if fresh:
        heads.init_head(heads.score_layer(module), seed=seed)
        notes.append(f"the scalar head is new (initialized from seed {seed})")
    if not dropout:
        disable_dropout(module.modules())
    if quantize is None:
        nn.Module.to(module, device)
    patched = layer_patching.patch_layers(module, arithmetic)
    check_model(module, None if head == "scalar" else output_head(module))
    exact.check_model(module, patched)
    routes = check_routing(module.eval()) if routing_replay else None
    value_head, head_notes = _value_head(folder, module) if head == "both" else (None, [])
    notes += head_notes
    for note in notes:
        logger.info(note)
    module.train(dropout or gradient_checkpointing)
    budget = budget_bytes or (CUDA_BUDGET_BYTES if module.device.type == "cuda" else BUDGET_BYTES)
    return LanguageModel(
        module,
        tokenizer,
        value_head,
        None,
        budget,
        gradient_checkpointing,
        tuple(notes),
        routes,
        origin,
    )


def read_config(source: str | Path, *, trust_remote_code: bool = False) -> PreTrainedConfig:
    """The configuration of a model, or of the base of an adapter; no weights are read."""
    return _config(
        check_hub(adapters.chain(check_hub(resolve(source)))[-1]), "tokens", trust_remote_code
    )


def _config_and_tokenizer(
    folder: Path | str, head: str, trust_remote_code: bool
) -> tuple[PreTrainedConfig, PreTrainedTokenizerBase]:
    """Those of the folder; what an adapter's folder does not hold is its base's."""
    base = check_hub(adapters.chain(folder)[-1])
    config = _config(base, head, trust_remote_code)
    if base != folder and isinstance(folder, Path):
        adapters.update_config(config, folder)
    own = isinstance(folder, Path) and (folder / "tokenizer_config.json").is_file()
    return config, load_tokenizer(folder if own else base, trust_remote_code=trust_remote_code)


def _config(folder: Path | str, head: str, trust_remote_code: bool) -> PreTrainedConfig:
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        fix = (
            "set model.trust_remote_code=true if you trust its code"
            if "trust_remote_code" in str(error)
            else "check the name"
        )
        raise ValueError(
            f"model {str(folder)!r} cannot be loaded: {first_line(error)}; {fix}"
        ) from error
    check_config(config, folder)
    # Remote code is not in transformers' tables. The truth value of a table would import every class in it.
    table: Any = AUTO[head]._model_mapping
    if type(config) not in table and not trust_remote_code:
        kind = "causal language model" if head != "scalar" else "sequence classifier"
        raise ValueError(
            f"{folder} is a {config.model_type}, for which transformers has no {kind}; use a decoder-only model"
        )
    if head == "scalar":
        config.num_labels = 1
    return config


def _module(
    folder: Path | str,
    config: PreTrainedConfig,
    head: str,
    options: dict[str, Any],
    quantize: str | None,
    device: str | torch.device,
) -> tuple[PreTrainedModel, bool]:
    """The module, dense or quantized, and whether its scalar head is random. An adapter is merged into its base."""
    base = adapters.base_of(folder)
    if base is None:
        if quantize is not None:
            quantization = quantizing.quantization(quantize, options["dtype"])
            # With a device map, each tensor is quantized there as it is read.
            options = {**options, "quantization_config": quantization, "device_map": {"": device}}
        return _weights(folder, config, head, options)
    assert isinstance(folder, Path)
    if quantize is not None:
        raise ValueError(
            f"quantize={quantize!r}: {folder} is a LoRA adapter; export it first and quantize the result"
        )
    adapters.check_base(folder, base)
    scored = adapters.has_score(folder)
    if scored and head != "scalar":
        raise ValueError(
            f"{folder} is the adapter of a reward model or critic, which has no token head; load another"
        )
    trained_on = adapters.training_of(folder)["quantize"]
    module, fresh = _module(check_hub(base), config, head, options, trained_on, device)
    if trained_on is not None:
        with quiet_transformers():
            module = module.dequantize(options["dtype"])
    return adapters.merge(module, folder), fresh and not scored


def _weights(
    folder: Path | str, config: PreTrainedConfig, head: str, options: dict[str, Any]
) -> tuple[PreTrainedModel, bool]:
    """The module, and whether its scalar head is missing from the folder (it is then random)."""
    saved_as = tuple(config.architectures or ())  # loading changes it
    try:
        # Random weights for missing ones must not advance the caller's random state.
        with quiet_transformers(), torch.random.fork_rng(devices=[]):
            module, report = AUTO[head].from_pretrained(
                folder,
                config=config,
                attn_implementation=attention.NAME,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **options,
            )
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"the weights of {folder} cannot be loaded: {first_line(error)}; they must be whole safetensors files: "
            "copy or download them again"
        ) from error
    missing = set(report["missing_keys"])
    fresh = head == "scalar" and "score.weight" in missing
    missing -= {"score.weight"} if fresh else set()
    wrong = sorted(missing | {str(each[0]) for each in report["mismatched_keys"]})
    if (
        head != "scalar"
        and wrong == ["lm_head.weight"]
        and any("SequenceClass" in each for each in saved_as)
    ):
        raise ValueError(
            f"{folder} is a reward model or critic, which has no token head; load another"
        )
    if wrong:
        raise ValueError(
            f"{folder} lacks {len(wrong)} weights of {type(module).__name__} or has them in another shape: "
            f"{', '.join(wrong[:4])}; they would be random: the folder is incomplete or not this architecture"
        )
    return module, fresh


def _match_tokenizer(tokenizer: Any, module: PreTrainedModel, *, classifies: bool) -> list[str]:
    """Check that tokenizer and embeddings agree; padding gets its own token, in the model's config too.

    The embedding of the padding token gets no gradient, as in transformers, but there it is the token that was padding
    when the module was made: often the end of turns, and another one once the model has been saved.
    """
    rows = embedding_rows(module)
    note = separate_padding(tokenizer, rows, classifies=classifies)
    untrained = None if tokenizer.pad_token_id == tokenizer.eos_token_id else tokenizer.pad_token_id
    for each in module.modules():
        if isinstance(each, nn.Embedding) and (
            each is module.get_input_embeddings() or each.padding_idx is not None
        ):
            each.padding_idx = untrained
    if len(tokenizer) > rows:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} tokens, the model {rows} embeddings; they belong to different models: "
            "save the right tokenizer beside the model"
        )
    module.config.pad_token_id = tokenizer.pad_token_id
    return [note] if note else []


def _value_head(folder: Path | str, module: PreTrainedModel) -> tuple[nn.Linear, list[str]]:
    size = module.config.get_text_config().hidden_size
    saved = heads.load_value_head(folder, size, torch.float32) if isinstance(folder, Path) else None
    notes = [] if saved is not None else ["the value head is new: all values are 0"]
    head = (saved or heads.new_value_head(size)).to(module.device)
    head.kernels = layer_patching.kernels_of(module)  # type: ignore[assignment]
    return head, notes
