"""A real byte-level BPE tokenizer, trained here on a few lines, with and without a chat template."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

LINES = [
    "system user assistant sort list the digits in order",
    "1 2 3 4 5 6 7 8 9 0 = + - what is the answer to this question",
    "Once upon a time there was a model that learned to stop.\n\nIt was happy.",
]
CHATML = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
# Ends turns without any special token, as some older templates do.
SPOKEN = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
# Offers tools and writes calls, which end with a token of their own.
TOOLS = (
    "{% if tools %}<|start|>system\n{{ tools | tojson }}<|end|>\n{% endif %}"
    "{% for m in messages %}<|start|>{{ m['role'] }}{{ ' ' ~ m['name'] if m['name'] }}\n{{ m['content'] }}"
    "{% for call in m['tool_calls'] or [] %}{{ call['function'] | tojson }}{% endfor %}"
    "{{ '<|eos|>' if m['tool_calls'] else '<|end|>' }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
# Leaves what an assistant thought out of all turns but the last, as reasoning models do.
FORGETFUL = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and not loop.last %}{{ m['content'].split('</think>')[-1] }}"
    "{% else %}{{ m['content'] }}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
# Drops what an assistant thought from every turn.
STRIPPING = FORGETFUL.replace(" and not loop.last", "")
# The same, and the generation prompt opens the thought (QwQ, newer R1 distillations).
OPENING = STRIPPING.replace(
    "<|start|>assistant\n{% endif %}", "<|start|>assistant\n<think>\n{% endif %}"
)
# Writes questions and answers alone.
TWO_ROLES = CHATML.replace("in messages %}", "in messages if m['role'] in ('user', 'assistant') %}")


@cache
def _trained() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|pad|>", "<|start|>", "<|end|>", "<|eos|>", "<|bos|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer.to_str()


def tokenizer(
    template: str | None = CHATML, *, eos: str = "<|end|>", pad: str = "<|pad|>", bos: bool = False
) -> PreTrainedTokenizerFast:
    """`bos`: the tokenizer puts a BOS before every text, as Llama's does."""
    backend = Tokenizer.from_str(_trained())
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<|bos|> $A", special_tokens=[("<|bos|>", 4)]
        )
    found = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=eos, pad_token=pad, bos_token="<|bos|>" if bos else None
    )
    found.chat_template = template
    return found


def spaced(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """A tokenizer that writes a space before every text (SentencePiece's habit)."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|pad|>", "<|start|>", "<|end|>"],
        show_progress=False,
        initial_alphabet=list("abcdefghijklmnopqrstuvwxyz0123456789\n"),
    )
    backend.train_from_iterator(LINES, trainer)
    found = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", pad_token="<|pad|>"
    )
    found.chat_template = template
    return found
