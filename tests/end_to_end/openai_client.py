"""What the official openai client says of a server: `python openai_client.py URL KEY` prints a JSON object.

Run by the Python of an environment that has it; nothing of Ascent is imported.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import openai

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2+2?"}]


def refusals(client: Any, model: str, url: str) -> list[str]:
    """The names of the exceptions that bad calls raise."""
    found = []
    bad: list[dict[str, Any]] = [
        {"max_tokens": 10**9},
        {"logit_bias": {"5": 1}},
        {"model": "other"},
    ]
    for options in bad:
        try:
            client.completions.create(**({"model": model, "prompt": "a"} | options))
        except openai.APIStatusError as error:
            found.append(type(error).__name__)
    try:
        openai.OpenAI(base_url=url, api_key="guess", max_retries=0).models.list()
    except openai.APIStatusError as error:
        found.append(type(error).__name__)
    return found


async def ask_at_once(url: str, key: str, model: str) -> list[str]:
    client = openai.AsyncOpenAI(base_url=url, api_key=key)
    calls = [
        client.completions.create(model=model, prompt=f"{n}+{n}=", max_tokens=6, seed=n)
        for n in range(64)
    ]
    return [reply.choices[0].text for reply in await asyncio.gather(*calls)]


def main(url: str, key: str) -> dict[str, Any]:
    client: Any = openai.OpenAI(base_url=url, api_key=key, max_retries=0)
    model = client.models.list().data[0].id
    plain = client.completions.create(
        model=model,
        prompt="1+1=",
        max_tokens=8,
        temperature=0,
        logprobs=2,
        n=2,
        extra_body={"return_token_ids": True},
    )
    options: dict[str, Any] = {
        "model": model,
        "messages": CHAT,
        "max_completion_tokens": 12,
        "temperature": 0,
    }
    chat = client.chat.completions.create(**options, logprobs=True, top_logprobs=2)
    with client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    ) as stream:
        pieces = list(stream)
    return {
        "version": openai.__version__,
        "model": model,
        "tokens": [choice.token_ids for choice in plain.choices],
        "logprobs": [choice.logprobs.token_logprobs for choice in plain.choices],
        "usage": plain.usage.total_tokens,
        "chat": chat.choices[0].message.content,
        "chat_logprobs": [row.logprob for row in chat.choices[0].logprobs.content],
        "stream": "".join(each.choices[0].delta.content or "" for each in pieces if each.choices),
        "stream_usage": pieces[-1].usage.completion_tokens,
        "refusals": refusals(client, model, url),
        "at_once": asyncio.run(ask_at_once(url, key, model)),
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
