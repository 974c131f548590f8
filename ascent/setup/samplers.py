"""The sampler that an engine's name stands for: in this process, on servers, or on a server started for it."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ascent.data.render import Renderer
from ascent.engines.copied import CopiedPolicyEngine
from ascent.engines.fleet import FleetServer, ServerFleet
from ascent.engines.hf import HFSampler
from ascent.engines.native.engine import NativeEngine
from ascent.engines.native.interruptible import InterruptibleEngine
from ascent.engines.placed_servers import PlacedFleet
from ascent.engines.remote import AT_ONCE, RemoteError, RemoteSampler
from ascent.engines.server_process import (
    ServerProcess,
    ascent_command,
    find_vllm,
    free_port,
    new_key,
    vllm_command,
    vllm_lora_rank,
)
from ascent.engines.weight_updates import AscentUpdates, VLLMUpdates, check_vocabulary
from ascent.http_client import RetryPolicy, ServerFailed
from ascent.models.adapters import base_of, sample_hash
from ascent.models.dtype import default_dtype
from ascent.models.model import LanguageModel
from ascent.models.numerics import describe_numerics, is_reproducible
from ascent.parallel.sampling import FirstRankSampler
from ascent.protocols import Sampler
from ascent.runs.sampler_files import LAUNCH, SamplerFiles, WantedServers
from ascent.setup.policy import device
from ascent.setup.policy_weights import PolicyWeights

if TYPE_CHECKING:  # not imported, because sampling from a model needs no recipes and no algorithms
    from ascent.plan.resolve import Plan

SERVER_KEY = "ASCENT_SERVER_KEY"  # the environment variable with the key of the servers
REMOTE = ("remote", "vllm")
OTHER_SAMPLERS = frozenset(
    {"opponent_samples", "reference_samples", "collision"}
)  # these need the policy of then
WEIGHTS, LOG = "weights", "server.log"


@dataclass(frozen=True)
class Engine:
    """Where completions come from: `native`, `hf`, `remote` (ascent serve) or `vllm`, the last two with the URLs of
    their servers, or with none: then one is started."""

    name: str = "native"
    servers: tuple[str, ...] = ()
    timeout: float = 600.0
    concurrency: int = AT_ONCE

    @classmethod
    def parse(cls, text: str) -> Engine:
        """native, hf, remote, vllm, or URL,URL of `ascent serve`; vllm:URL,URL of vLLM."""
        name, _, urls = (
            text.partition(":") if re.match("(remote|vllm):http", text) else (text, "", "")
        )
        if re.match("https?://", text):
            name, urls = "remote", text
        if name not in ("native", "hf", *REMOTE):
            raise ValueError(
                f"engine={text!r}, but it must be native, hf, remote, vllm, the URLs of servers (http://host:8000/v1, "
                "separated by commas), or vllm: and such URLs"
            )
        return cls(name, tuple(filter(None, urls.split(","))))

    @property
    def is_remote(self) -> bool:
        return self.name in REMOTE


@dataclass(frozen=True)
class ServedPolicy:
    """What servers must agree with: the policy's tokenizer, the tokens that end a completion, the longest sequence."""

    tokenizer: Any
    stop_ids: Iterable[int]
    longest: int
    dtype: str
    numerics: str | None = None  # where they determine the bits of the log-probs
    weights_sample: str | None = None  # of a model that is not trained: `sample_hash` of its folder


def policy_sampler(
    plan: Plan,
    model: LanguageModel,
    renderer: Renderer,
    longest: int,
    folder: Path,
    copy: Callable[[], LanguageModel] | None = None,
) -> Sampler:
    """The sampler of the policy in training. `folder` is the run's, for weights and the log of a server. With `copy`,
    which loads the policy once more, the native engine samples while the policy is trained."""
    settings = plan.config.rollouts
    if settings.engine == "native" and copy is not None:
        return CopiedPolicyEngine(model, copy(), renderer.stop_ids, max_model_len=longest)
    if settings.partial_rollouts:
        return InterruptibleEngine(model, renderer.stop_ids, max_model_len=longest)
    if settings.engine not in REMOTE:
        return local_sampler(settings.engine, model, renderer, longest)
    engine = Engine(
        settings.engine, settings.servers, settings.server_timeout, settings.server_concurrency
    )
    place = (
        folder / WEIGHTS
        if settings.weights_folder is None
        else Path(settings.weights_folder).expanduser()
    )
    # A shared folder may be that of several runs.
    own = (
        place
        if settings.weights_folder is None
        else place / f"ascent-{os.getpid()}-{os.urandom(3).hex()}"
    )
    numerics = describe_numerics(model) if is_reproducible(model) else None
    served = ServedPolicy(
        model.tokenizer, renderer.stop_ids, longest, str(plan.config.model.dtype), numerics
    )
    policy = PolicyWeights(model, own.absolute(), settings.lora_sync)
    launch = os.environ.get(LAUNCH)
    if launch is not None and not engine.servers:
        return placed_fleet(engine, served, SamplerFiles(folder, launch), policy)
    return fleet_of(engine, served, folder / LOG, policy=policy)


def local_sampler(engine: str, model: LanguageModel, renderer: Renderer, longest: int) -> Sampler:
    """A sampler of this process, on the model's own tensors."""
    if engine in REMOTE:
        raise ValueError(
            f"rollouts.engine={engine} is for algorithms that learn from rollouts; use native"
        )
    if engine == "hf":
        return HFSampler(model, renderer.stop_ids)
    return NativeEngine(model, renderer.stop_ids, max_model_len=longest)


def reference_sampler(
    plan: Plan, model: LanguageModel, renderer: Renderer, longest: int
) -> Sampler:
    """Servers have the policy alone: a second model is sampled in this process."""
    engine = plan.config.rollouts.engine
    return local_sampler("native" if engine in REMOTE else engine, model, renderer, longest)


def fixed_sampler(engine: Engine, folder: Path | str, served: ServedPolicy) -> Sampler:
    """Completions of a model that is not trained, from servers that have it, or from one that is started with it."""
    if engine.name == "vllm" and isinstance(folder, Path) and base_of(folder) is not None:
        raise ValueError(
            f"{folder} is an adapter, which vLLM is not given here; export it first (ascent export)"
        )
    sample = sample_hash(folder) if isinstance(folder, Path) else None
    return fleet_of(engine, replace(served, weights_sample=sample), model=folder)


def fleet_of(
    engine: Engine,
    served: ServedPolicy,
    log: Path | None = None,
    *,
    policy: PolicyWeights | None = None,
    model: Path | str | None = None,
) -> ServerFleet:
    """Given servers are checked now; one that is started for this is started with the first request. Without `log` its
    log goes with it, if it did start."""
    members = [_member(engine, url, os.environ.get(SERVER_KEY), served) for url in engine.servers]
    adapter = policy is not None and policy.sends_adapter(members)
    own_head = (
        any(each.model.needs_head for each in members)
        if members
        else engine.name == "vllm" and device() == "cpu"
    )
    weights = None if policy is None else policy.folders(adapter=adapter, own_head=own_head)
    merged = (
        policy is not None and policy.model.adapter is not None and not adapter
    )  # which rounds differently
    numerics = None if merged else served.numerics
    if members:
        exact = numerics is not None and all(each.model.numerics == numerics for each in members)
        return ServerFleet(lambda: members, weights, exact=exact)
    exits, rank = ExitStack(), policy.lora_rank if policy is not None and adapter else None
    if engine.name == "vllm":
        find_vllm(), vllm_lora_rank(rank or 1)

    def start() -> list[FleetServer]:
        # The current weights, which are written before a server is asked for.
        place = (
            partial(str, model) if weights is None else lambda: str(weights.initial(fleet.version))
        )
        written = log or Path(tempfile.mkdtemp(prefix="ascent-server-")) / LOG
        process = _start(engine, place, served, written, exits, rank)
        if log is None:
            exits.callback(shutil.rmtree, written.parent, ignore_errors=True)
        return [
            replace(
                _member(engine, process.url, process.key, served),
                ensure_running=process.ensure_running,
            )
        ]

    exact = (
        numerics is not None and engine.name == "remote"
    )  # the same machine, the same environment
    fleet = ServerFleet(start, weights, disconnect=exits.close, exact=exact)
    return fleet


def placed_fleet(
    engine: Engine, served: ServedPolicy, files: SamplerFiles, policy: PolicyWeights
) -> ServerFleet:
    """Servers that the launcher of this run places, which may change while the run goes on."""
    adapter = policy.sends_adapter(())
    weights = policy.folders(adapter=adapter)
    merged = policy.model.adapter is not None and not adapter  # which rounds differently
    numerics = None if merged else served.numerics

    def wanted() -> WantedServers:
        dtype = default_dtype() if served.dtype == "auto" else served.dtype
        return WantedServers(str(weights.keep_initial(fleet.version)), dtype, served.longest)

    def member(url: str) -> FleetServer:
        found = _checked_member(engine, url, os.environ.get(SERVER_KEY), served)
        if numerics is not None and found.model.numerics != numerics:
            raise RemoteError(
                f"the sampler {url} computes other bits ({found.model.numerics}) than the trainer ({numerics}), so "
                "log-probs are not exact; use nodes with one kind of CPU, or start servers yourself and name them in "
                "rollouts.servers"
            )
        return found

    placed = PlacedFleet(files, wanted, member)
    fleet = ServerFleet(
        placed.connect,
        weights,
        disconnect=files.delete,
        exact=numerics is not None,
        patience=placed.patience,
        refresh=placed.refresh,
    )
    return fleet


def _start(
    engine: Engine,
    model: Callable[[], str],
    served: ServedPolicy,
    log: Path,
    exits: ExitStack,
    lora_rank: int | None,
) -> ServerProcess:
    port, place = free_port(), Path(tempfile.mkdtemp(prefix="ascent-key-"))
    exits.callback(shutil.rmtree, place, ignore_errors=True)
    key = new_key(place / "key")
    dtype = default_dtype() if served.dtype == "auto" else served.dtype
    make = partial(ascent_command, key_file=place / "key")
    if engine.name == "vllm":
        make = partial(vllm_command, key=key, lora_rank=lora_rank)
    process = ServerProcess(
        lambda: make(model(), port, dtype=dtype, max_model_len=served.longest), port, key, log
    )
    exits.callback(process.close)
    process.wait()
    return process


def _member(engine: Engine, url: str, key: str | None, served: ServedPolicy) -> FleetServer:
    """A server, once it is known to have the policy's vocabulary and room for its sequences."""
    try:
        return _checked_member(engine, url, key, served)
    except ServerFailed as failure:
        raise ValueError(
            f"the server {url} cannot be used: {failure}; start it with ascent serve, and set {SERVER_KEY} to its key"
        ) from None


def _checked_member(engine: Engine, url: str, key: str | None, served: ServedPolicy) -> FleetServer:
    """ServerFailed if it does not answer, ValueError if it does not fit."""
    retry = RetryPolicy(timeout=engine.timeout, tries=1)
    kind = VLLMUpdates if engine.name == "vllm" else AscentUpdates
    updates = kind(url, key, retry)
    model = updates.check()
    check_vocabulary(url, key, retry, served.tokenizer.encode)
    if (
        None not in (served.weights_sample, model.weights_sample)
        and served.weights_sample != model.weights_sample
    ):
        raise ValueError(
            f"the server {url} has other weights than the model that is named (it serves {model.name!r}); name the one "
            "that it serves, or leave out the URL, and a server is started"
        )
    if model.max_model_len is not None and model.max_model_len < served.longest:
        raise ValueError(
            f"the server {url} takes {model.max_model_len} tokens, but a sequence may have {served.longest}; start it "
            f"with --max-model-len {served.longest}"
        )
    sampler = RemoteSampler(
        url,
        model.name,
        served.stop_ids,
        key=key,
        retry=retry,
        exact=engine.name == "remote",
        at_once=engine.concurrency,
    )
    return FleetServer(sampler, updates, model)


def samples_exactly(plan: Plan, sampler: Sampler | None = None) -> bool:
    """Whether the log-probs that the sampler records are the trainer's: bit for bit in exact arithmetic, and up to the
    rounding of float32 on a CPU."""
    config = plan.config
    if isinstance(sampler, ServerFleet | FirstRankSampler):
        return sampler.exact
    if config.model.arithmetic == "exact":
        return config.rollouts.engine == "native"
    return (
        config.rollouts.engine == "native" and device() == "cpu" and config.model.dtype == "float32"
    )


def can_overlap(plan: Plan, *, exact: bool) -> bool:
    """Whether later rollouts can be sampled during the update: nobody else may need the policy of then.

    On a GPU the native engine and the update would only share the device. Recorded log-probs that are not the trainer's
    need a correction, because the policy that sampled cannot be asked for its own any more.
    """
    row, settings = plan.row, plan.config.rollouts
    # One version of the staleness is for partial rollouts, which go on in the next step.
    spare = settings.max_staleness - settings.partial_rollouts
    if spare < 1 or row.source == "fresh_pairs" or row.needs & OTHER_SAMPLERS:
        return False
    corrected = row.rollout_correction is not None and row.rollout_correction.name not in (
        "none",
        "bypass",
    )
    if settings.engine == "native" and device() != "cpu":
        return False
    return (
        exact if settings.engine == "native" else settings.engine in REMOTE and (exact or corrected)
    )


def check_engine(plan: Plan) -> None:
    """Refuse what the sampler cannot do, before anything is loaded."""
    config, engine = plan.config, plan.config.rollouts.engine
    if config.model.arithmetic == "exact" and engine != "native":
        raise ValueError(
            f"model.arithmetic=exact: rollouts.engine={engine} samples with other kernels; use native"
        )
    if config.rollouts.partial_rollouts and not (
        samples_exactly(plan) or plan.row.corrects_rollouts
    ):
        raise ValueError(
            f"rollouts.partial_rollouts=true in {config.model.dtype} on {device()}: the log-probs that are recorded "
            "are not exactly the trainer's, and the policies that sampled cannot be asked again; set "
            "cells.rollout_correction.use=token_truncate"
        )
    if engine not in REMOTE:
        return
    if config.model.quantize is not None:
        raise ValueError(
            f"rollouts.engine={engine} serves the merged model, but model.quantize={config.model.quantize} trains on "
            "rounded weights; use native"
        )
