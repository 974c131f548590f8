"""A small model's forward on a CPU, recorded once for a number of tokens and replayed from then on.

In a model of a few small layers most of a step is not arithmetic but what surrounds it: Python, and the making of
tensors and views. Here the stock modules run once, and every operation below them is noted with the tensors that it
reads and makes. Those tensors are given places in memory that stay, so a replay makes none: it repeats the arithmetic
in order, each operation writing where it wrote before, much as a CUDA graph does. The weights are not copied: the
recording reads the modules' own tensors where they lie. Attention is not recorded but asked again of the context that
is entered when the replay runs (see `models.attention`).

Sums, products and copies of float32 run in numpy, which takes a third of torch's time to begin. They have one correctly
rounded result; only the means of norms are summed in another order than torch's, which moves their last bit. A
recording is used only if it agrees with the modules on other tokens than it was made from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ascent.models.attention import Call, attending, current
from ascent.models.model import LanguageModel

AGREEMENT = 1e-5
LARGEST = 20_000_000  # parameters: beyond, the products take nearly all of a step
Forward = Callable[[Tensor, Tensor], Tensor]
Action = Callable[[], object]
aten = torch.ops.aten

IN_NUMPY = {
    aten.mul.Tensor: np.multiply, aten.add.Tensor: np.add, aten.sub.Tensor: np.subtract, aten.div.Tensor: np.divide,
    aten.neg.default: np.negative,
}  # fmt: skip
NUMPYS = (torch.float32, torch.int64, torch.int32, torch.bool)
FORBIDDEN = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded)


def worth_recording(model: LanguageModel) -> bool:
    return model.device.type == "cpu" and sum(each.numel() for each in model.module.parameters()) <= LARGEST


class _Hidden(nn.Module):
    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens_T: Tensor, positions_T: Tensor) -> Tensor:
        out = self.decoder(input_ids=tokens_T[None], position_ids=positions_T[None], use_cache=False)
        hidden_TD: Tensor = out.last_hidden_state[0]
        return hidden_TD


def forward_of(model: LanguageModel) -> Forward:
    """The modules' own forward: hidden states of flat tokens."""
    return _Hidden(model.module.base_model)


def recorded(own: Forward, size: int) -> Forward:
    """A replay of `own` for up to `size` tokens; `own` itself where its operations depend on what it reads."""
    tokens_T, positions_T = torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.int64)
    recorder = _Recorder(size)
    try:
        with attending(recorder), recorder:
            result_TD = own(tokens_T, positions_T)
    except NotRecordable:
        return own
    replay = _Replay(tokens_T, positions_T, *_planned(recorder.operations, result_TD))
    others_T = torch.arange(size) % 3, torch.arange(size).flip(0)
    with attending(_Toy(size)):
        replayed_TD, own_TD = replay(*others_T), own(*others_T)
    return replay if torch.allclose(replayed_TD, own_TD, rtol=AGREEMENT, atol=AGREEMENT) else own


class NotRecordable(RuntimeError):
    """What is run next depends on numbers that were computed."""


@dataclass
class _Operation:
    """`made` lists the tensors it makes, `used` those it is given; what it does to these it will do again."""

    function: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    used: list[Tensor]
    made: list[Tensor]


@dataclass
class _Toy:
    """The context of rehearsals: attention returns values, and nothing is stored."""

    total: int

    def attend(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, call: Call) -> Tensor:
        return v_TKD.repeat_interleave(q_THD.shape[1] // v_TKD.shape[1], 1) + q_THD.sum(-1, keepdim=True)


class _Recorder(TorchDispatchMode):
    """Notes every operation that makes or changes a tensor, and where attention is asked (as its `Call`)."""

    def __init__(self, total: int) -> None:
        super().__init__()
        self.total = total
        self.operations: list[_Operation] = []
        self._paused = False

    def attend(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, call: Call) -> Tensor:
        self._paused = True
        out_THD = _Toy(self.total).attend(q_THD, k_TKD, v_TKD, call).contiguous()
        self._paused = False
        self.operations.append(_Operation(call, (q_THD, k_TKD, v_TKD), {}, [q_THD, k_TKD, v_TKD], [out_THD]))
        return out_THD

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        out = func(*args, **options)
        if self._paused:
            return out
        if any(tag in func.tags for tag in FORBIDDEN):
            raise NotRecordable(str(func))
        each = _Operation(func, args, options, list(_tensors((args, options))), [])
        given = {_place(tensor) for tensor in each.used}
        made = [out] if isinstance(out, Tensor) else list(_tensors(out))
        if func._schema.is_mutable:
            self.operations.append(each)
        elif given and any(_place(tensor) not in given for tensor in made):
            each.made = made
            self.operations.append(each)
        # The rest are views, which stay valid because memory does, and constants, which nothing has been read for.
        return out


def _place(tensor: Tensor) -> int:
    """Which memory a tensor lies in. Unique while the tensor lives, and operations keep theirs alive."""
    number: int = tensor.untyped_storage()._cdata
    return number


class _Replay:
    """Runs the parts between two calls of attention, and attention under the context of its own time."""

    def __init__(self, tokens_T: Tensor, positions_T: Tensor, parts: list[list[Action]], calls: Any, out: Any) -> None:
        self._tokens_T, self._positions_T, self._size = tokens_T, positions_T, tokens_T.shape[0]
        self._parts, self._calls, self._result_TD = parts, calls, out

    @torch.inference_mode()
    @np.errstate(all="ignore")  # as in torch: infinities and NaN pass through
    def __call__(self, tokens_T: Tensor, positions_T: Tensor) -> Tensor:
        """Hidden states of these tokens, in memory that the next call overwrites."""
        count, context = tokens_T.shape[0], current()
        self._tokens_T[:count] = tokens_T
        self._positions_T[:count] = positions_T
        for part, (call, q_THD, k_TKD, v_TKD, out_THD) in zip(self._parts, self._calls, strict=False):
            for action in part:
                action()
            if count == self._size:
                out_THD.copy_(context.attend(q_THD, k_TKD, v_TKD, call))
            else:
                out_THD[:count] = context.attend(q_THD[:count], k_TKD[:count], v_TKD[:count], call)
        for action in self._parts[-1]:
            action()
        result_TD: Tensor = self._result_TD[:count]
        return result_TD


def _planned(operations: list[_Operation], result: Tensor) -> tuple[list[list[Action]], list[Any], Tensor]:
    """Give every tensor that is made a place in memory, used again when it has been read for the last time."""
    last = {_place(tensor): n for n, each in enumerate(operations) for tensor in (*each.used, *each.made)}
    last[_place(result)] = len(operations)
    buffers: dict[int, Tensor] = {}
    free: dict[int, list[Tensor]] = {}
    parts: list[list[Action]] = [[]]
    calls = []

    def settled(each: Any) -> Any:
        """A tensor where it will lie; anything else as it is."""
        if not isinstance(each, Tensor):
            return each
        if _place(each) not in buffers:
            return each.detach()  # a weight, an input, or a constant
        flat = buffers[_place(each)].view(each.dtype)
        return flat.as_strided(each.shape, each.stride(), each.storage_offset())

    for n, each in enumerate(operations):
        for tensor in each.made:
            if _place(tensor) not in buffers:
                size = -(-tensor.untyped_storage().nbytes() // 64) * 64
                same = free.get(size)
                buffers[_place(tensor)] = same.pop() if same else torch.empty(size, dtype=torch.uint8)
        arguments, options, made = (tree_map(settled, part) for part in (each.arguments, each.options, each.made))
        if isinstance(each.function, Call):
            calls.append((each.function, *arguments, *made))
            parts.append([])
        else:
            parts[-1] += _actions(each.function, arguments, options, made)
        for place in {_place(tensor) for tensor in (*each.used, *each.made)}:
            if last[place] == n and place in buffers:
                free.setdefault(buffers[place].numel(), []).append(buffers[place])
    return parts, calls, settled(result)


def _actions(function: Any, arguments: Any, options: Any, made: list[Tensor]) -> list[Action]:
    """The calls that do an operation again, its results written to `made`."""
    again = partial(function, *arguments, **options)
    if not made:
        return [again]
    if len(made) == 1:
        (out,) = made
        if all(each.dtype in NUMPYS for each in _tensors((arguments, out))) and out.dtype == torch.float32:
            given = tree_map(_plain, arguments)
            if known := _in_numpy(function, given, options, out.numpy()):
                return known
        name = function._schema.name.removeprefix("aten::")
        if binding := getattr(torch, name, None) or getattr(torch._C._nn, name, None):
            action = _into(partial(binding, **options) if options else binding, arguments, out)
            try:
                action()
            except (TypeError, RuntimeError):  # it cannot write to a given place
                return [partial(_copied, again, made)]
            return [action]
    return [partial(_copied, again, made)]


def _plain(each: Any) -> Any:
    """As numpy has it. A number becomes an array, with which numpy begins sooner."""
    return each.numpy() if isinstance(each, Tensor) else np.array(each, np.float32) if isinstance(each, float) else each


def _into(binding: Any, arguments: Any, out: Tensor) -> Action:
    """binding(*arguments, out=out), in the form that takes Python the least time."""
    if len(arguments) == 2:
        first, second = arguments
        return lambda: binding(first, second, out=out)
    return lambda: binding(*arguments, out=out)


def _copied(again: Action, made: list[Tensor]) -> None:
    for target, source in zip(made, _tensors(again()), strict=True):
        target.copy_(source)


def _in_numpy(function: Any, given: Any, options: Any, out: Any) -> list[Action]:
    """The same in numpy; nothing where that is not known."""
    if function == aten._to_copy.default:
        return [partial(np.copyto, out, given[0], "unsafe")]
    if options:
        return []
    if function in IN_NUMPY:
        return [partial(IN_NUMPY[function], *given, out)]
    if function == aten.clone.default:
        return [partial(np.copyto, out, given[0])]
    if function == aten.pow.Tensor_Scalar and given[1] == 2:
        return [partial(np.multiply, given[0], given[0], out)]
    if function == aten.rsqrt.default:
        return [partial(np.sqrt, given[0], out), partial(np.divide, np.array(1, np.float32), out, out)]
    if function == aten.mean.dim and given[1:] == ([-1], True):
        count = np.array(given[0].shape[-1], np.float32)
        return [partial(np.add.reduce, given[0], -1, None, out, True), partial(np.divide, out, count, out)]
    if function == aten.bmm.default and given[0].shape[-1] == 1:
        return [partial(np.multiply, *given, out)]
    if function == aten.embedding.default and len(given) <= 3:
        return [partial(np.take, given[0], given[1], 0, out, "clip")]
    if function == aten.cat.default:
        dim = given[1] if len(given) > 1 else 0
        ends = np.cumsum([0, *(each.shape[dim] for each in given[0])]).tolist()
        places = [out.swapaxes(0, dim)[start:end].swapaxes(0, dim) for start, end in pairwise(ends)]
        return [partial(np.copyto, place, each) for place, each in zip(places, given[0], strict=True)]
    return []


def _tensors(nested: Any) -> Iterator[Tensor]:
    return (each for each in tree_leaves(nested) if isinstance(each, Tensor))
