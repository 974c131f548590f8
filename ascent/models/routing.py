"""Routing replay: in training a token takes the experts it took while sampling (R3, arXiv 2510.11370).

A router keeps its highest scores. Where two nearly tie, the last bit decides, and another expert means another
log-prob: the ratio of a policy to itself is then not 1. `RoutingRecorder` records the experts of each token;
`RoutingReplay` makes every router choose the recorded ones, weighted by its current scores.

The modules' code is not changed. transformers' routers return (scores of all experts, weights, experts) and choose with
topk, once over all experts and in some families before that over groups of experts: topk is overridden.

Axes: T tokens, L layers with experts, C experts of a token, E all experts of a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ascent.models import attention
from ascent.models.attention import ContextVarScope

EXPERTS: Final = "routed_experts_TLC"  # the batch field of recorded experts
ROUTES_CHANGED = "policy/routes_changed_frac"  # the output that counts those that routers would not choose any more

Run = Callable[[], Any]  # a router's stock forward


class Routes(NamedTuple):
    """The shape of one token's experts: `layers` x `choices` indices of the smallest dtype that holds them."""

    layers: int
    choices: int
    dtype: torch.dtype


def no_expert(dtype: torch.dtype) -> int:
    """The index of no expert: the token was not run while sampling, so its router chooses."""
    return torch.iinfo(dtype).max


class RoutingRecorder:
    """Records what every router chose."""

    def __init__(self) -> None:
        self.experts: dict[int, Tensor] = {}  # by router index, (T, C)
        self.num_experts = 0

    def route(self, run: Run, router: int, owner: str) -> Any:
        out = run()
        self.experts[router] = _chosen(out, owner)
        self.num_experts = max(self.num_experts, out[0].shape[-1])
        return out

    def stacked(self, dtype: torch.dtype) -> Tensor:
        return torch.stack([self.experts[router] for router in sorted(self.experts)], 1).to(dtype)


class RoutingReplay(RoutingRecorder):
    """Makes every router choose the recorded experts. `changed_2`: (experts it would not have chosen, all recorded).

    `repeats_T` says how many tokens of the batch each of a shared prefix stands for: all of them are counted, so that
    the count does not depend on which sequences run together.
    """

    def __init__(self, experts_TLC: Tensor) -> None:
        super().__init__()
        self.experts_TLC = experts_TLC
        self.repeats_T: Tensor | None = None  # None: one each
        self.changed_2 = torch.zeros(2, device=experts_TLC.device)

    def route(self, run: Run, router: int, owner: str) -> Any:
        with torch.no_grad():
            unforced = run()
            chosen_TC, replayed_TC = _chosen(unforced, owner), self.experts_TLC[:, router]
            recorded_T1 = replayed_TC[:, :1] != no_expert(replayed_TC.dtype)
            forced_TC = torch.where(recorded_T1, replayed_TC.long(), chosen_TC)
            changed_TC = (forced_TC[:, :, None] != chosen_TC[:, None, :]).all(-1)
            counts_T2 = torch.cat(
                [changed_TC.sum(1, keepdim=True), recorded_T1 * replayed_TC.shape[1]], 1
            )
            if self.repeats_T is not None:
                counts_T2 = counts_T2 * self.repeats_T[:, None]
            self.changed_2 = self.changed_2 + counts_T2.sum(0)
        with _ForcedTopk(forced_TC, unforced[0].shape[-1]):
            return super().route(run, router, owner)


class _ForcedTopk(TorchFunctionMode):
    """Overrides topk over all experts, and topk over groups of experts, with the forced experts."""

    def __init__(self, forced_TC: Tensor, experts: int) -> None:
        super().__init__()
        self._forced_TC, self._num_experts = forced_TC, experts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            func in (torch.topk, Tensor.topk)
            and args[0].ndim == 2
            and self._num_experts % args[0].shape[1] == 0
        ):
            index_TC = self._forced_TC // (self._num_experts // args[0].shape[1])
            return torch.return_types.topk((args[0].gather(1, index_TC), index_TC))
        return func(*args, **(kwargs or {}))


def _chosen(out: Any, owner: str) -> Tensor:
    """The experts in a router's output."""
    if (
        isinstance(out, tuple)
        and len(out) == 3
        and all(isinstance(each, Tensor) and each.ndim == 2 for each in out)
    ):
        experts_TC: Tensor = out[2]
        if not experts_TC.is_floating_point() and out[1].shape == experts_TC.shape:
            return experts_TC
    raise ValueError(
        f"{owner} does not return (scores, weights, experts) of every token, so its choices cannot be replayed; set "
        "model.routing_replay=false"
    )


_current_routing: ContextVar[RoutingRecorder | None] = ContextVar("routing", default=None)


def routing(context: RoutingRecorder) -> ContextVarScope:
    """Run forwards in this context: with routing(RoutingReplay(experts_TLC))."""
    return ContextVarScope((_current_routing, context))


def capture_contexts() -> ContextVarScope:
    """The current contexts of attention and routing, to be entered again later."""
    return ContextVarScope(
        attention.context_entry(attention.current_context()),
        (_current_routing, _current_routing.get()),
    )


def route(run: Run, router: int, owner: str) -> Any:
    """The patched forward of routers (see `layer_patching`)."""
    context = _current_routing.get()
    return run() if context is None else context.route(run, router, owner)
