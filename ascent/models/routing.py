"""Routing replay: a token takes the experts in training that it took while it was sampled (R3, arXiv 2510.11370).

A router keeps the best of its scores. Where two nearly tie, the last bit decides, and another expert means another
log-prob: the ratio of a policy to itself is then not 1. Under `Recording` a forward notes the experts that each token
takes; under `Replay` every router takes those that were noted, and weighs them by its scores of now.

The modules' code is left alone. transformers' routers return (scores of all experts, weights, experts) and choose with
topk, once over all experts and in some families once over groups of experts before that: here topk is answered.

Axes: T tokens, L layers with experts, C experts that a token takes, E all experts of a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ascent.models import attention
from ascent.models.attention import Entered

EXPERTS = "routed_experts_TLC"  # what a batch calls the experts that were recorded
CHANGED = "policy/routes_changed_frac"  # and a model how many of them its routers would not take any more

Run = Callable[[], Any]  # a router's own forward


class Routes(NamedTuple):
    """The experts of one token, as numbers: `layers` x `choices` of them, of the smallest type that holds them all."""

    layers: int
    choices: int
    dtype: torch.dtype


def missing(dtype: torch.dtype) -> int:
    """The number that stands for no expert: such a token was never run while sampling, and is routed anew."""
    return torch.iinfo(dtype).max


class Recording:
    """Notes what every router chose."""

    def __init__(self) -> None:
        self.experts: dict[int, Tensor] = {}  # by the router's place, (T, C)
        self.most = 0

    def route(self, run: Run, place: int, owner: str) -> Any:
        out = run()
        self.experts[place] = _chosen(out, owner)
        self.most = max(self.most, out[0].shape[-1])
        return out

    def stacked(self, dtype: torch.dtype) -> Tensor:
        return torch.stack([self.experts[place] for place in sorted(self.experts)], 1).to(dtype)


class Replay(Recording):
    """Makes every router choose what is given. `changed_2`: (experts that it would not have chosen, all given)."""

    def __init__(self, experts_TLC: Tensor) -> None:
        super().__init__()
        self.given_TLC = experts_TLC
        self.changed_2 = torch.zeros(2, device=experts_TLC.device)

    def route(self, run: Run, place: int, owner: str) -> Any:
        with torch.no_grad():
            first = run()
            own_TC, given_TC = _chosen(first, owner), self.given_TLC[:, place]
            known_T1 = given_TC[:, :1] != missing(given_TC.dtype)
            taken_TC = torch.where(known_T1, given_TC.long(), own_TC)
            changed_TC = (taken_TC[:, :, None] != own_TC[:, None, :]).all(-1)
            self.changed_2 = self.changed_2 + torch.stack([changed_TC.sum(), known_T1.sum() * given_TC.shape[1]])
        with _Answered(taken_TC, first[0].shape[-1]):
            return super().route(run, place, owner)


class _Answered(TorchFunctionMode):
    """Inside, topk over all experts gives those taken, and topk over groups of experts the groups they lie in."""

    def __init__(self, taken_TC: Tensor, experts: int) -> None:
        super().__init__()
        self._taken_TC, self._experts = taken_TC, experts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.topk, Tensor.topk) and args[0].ndim == 2 and self._experts % args[0].shape[1] == 0:
            found_TC = self._taken_TC // (self._experts // args[0].shape[1])
            return torch.return_types.topk((args[0].gather(1, found_TC), found_TC))
        return func(*args, **(kwargs or {}))


def _chosen(out: Any, owner: str) -> Tensor:
    """The experts that a router returned."""
    if isinstance(out, tuple) and len(out) == 3 and all(isinstance(each, Tensor) and each.ndim == 2 for each in out):
        experts_TC: Tensor = out[2]
        if not experts_TC.is_floating_point() and out[1].shape == experts_TC.shape:
            return experts_TC
    raise ValueError(
        f"{owner} does not return (scores, weights, experts) of every token, so its choices cannot be replayed; set "
        "model.routing_replay=false"
    )


_now: ContextVar[Recording | None] = ContextVar("routing", default=None)


def routing(context: Recording) -> Entered:
    """Route forwards under this: with routing(Replay(experts_TLC))."""
    return Entered((_now, context))


def as_now() -> Entered:
    """The contexts of attention and routing as they are now, to be entered again later."""
    return Entered(attention.entry(attention.current()), (_now, _now.get()))


def route(run: Run, place: int, owner: str) -> Any:
    """What a router's forward has become (see `seams`)."""
    context = _now.get()
    return run() if context is None else context.route(run, place, owner)
