"""CPU graphs: a small model's forward, captured once per number of tokens and replayed.

In a model of a few small layers, most of a step is Python and the creation of tensors and views, not arithmetic. The
stock modules run once under a tracer, which records every operation with its inputs and outputs. Each output gets a
fixed buffer, so a replay creates no tensors, like a CUDA graph. Weights are not copied but read from the modules.
Attention is not captured but called on the context of the replay (see `models.attention`).

Sums, products and copies in float32 run in numpy, which has a third of torch's call overhead. Their results are
correctly rounded and thus equal; only the means in norms are summed in another order, which changes their last bit. A
graph is used only if it agrees with the modules on test inputs.
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

from ascent.models.attention import AttentionCall, attention_context, current_context
from ascent.models.model import LanguageModel

TOLERANCE = 1e-5
MAX_PARAMETERS = 20_000_000  # parameters: beyond, matrix products dominate a step
Forward = Callable[[Tensor, Tensor], Tensor]
Action = Callable[[], object]
aten = torch.ops.aten

NUMPY_FUNCTIONS = {
    aten.mul.Tensor: np.multiply,
    aten.add.Tensor: np.add,
    aten.sub.Tensor: np.subtract,
    aten.div.Tensor: np.divide,
    aten.neg.default: np.negative,
}
NUMPY_DTYPES = (torch.float32, torch.int64, torch.int32, torch.bool)
FORBIDDEN = (
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,
)


def supports_cpu_graph(model: LanguageModel) -> bool:
    return (
        model.device.type == "cpu"
        and sum(each.numel() for each in model.module.parameters()) <= MAX_PARAMETERS
    )


class _HiddenStates(nn.Module):
    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens_T: Tensor, positions_T: Tensor) -> Tensor:
        out = self.decoder(
            input_ids=tokens_T[None], position_ids=positions_T[None], use_cache=False
        )
        hidden_TD: Tensor = out.last_hidden_state[0]
        return hidden_TD


def eager_forward(model: LanguageModel) -> Forward:
    """The modules' forward: hidden states of flat tokens."""
    return _HiddenStates(model.module.base_model)


def capture(forward: Forward, size: int) -> Forward:
    """A graph of `forward` for up to `size` tokens; `forward` itself if its control flow depends on the data."""
    tokens_T, positions_T = (
        torch.zeros(size, dtype=torch.int64),
        torch.zeros(size, dtype=torch.int64),
    )
    tracer = _Tracer(size)
    try:
        with attention_context(tracer), tracer:
            output_TD = forward(tokens_T, positions_T)
    except NotCapturable:
        return forward
    graph = _CpuGraph(tokens_T, positions_T, *_assign_buffers(tracer.operations, output_TD))
    test_inputs = torch.arange(size) % 3, torch.arange(size).flip(0)
    with attention_context(_DummyAttention(size)):
        graph_TD, eager_TD = graph(*test_inputs), forward(*test_inputs)
    return graph if torch.allclose(graph_TD, eager_TD, rtol=TOLERANCE, atol=TOLERANCE) else forward


class NotCapturable(RuntimeError):
    """Control flow depends on computed values."""


@dataclass
class _Operation:
    """`outputs` are new tensors; changes to `inputs` in place are repeated by the replay."""

    function: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    inputs: list[Tensor]
    outputs: list[Tensor]


@dataclass
class _DummyAttention:
    """The context of captures and checks: no KV cache is written."""

    total: int

    def attend(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, call: AttentionCall) -> Tensor:
        return v_TKD.repeat_interleave(q_THD.shape[1] // v_TKD.shape[1], 1) + q_THD.sum(
            -1, keepdim=True
        )


class _Tracer(TorchDispatchMode):
    """Records every operation that creates or changes a tensor; attention is recorded as its `AttentionCall`."""

    def __init__(self, total: int) -> None:
        super().__init__()
        self.total = total
        self.operations: list[_Operation] = []
        self._paused = False

    def attend(self, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, call: AttentionCall) -> Tensor:
        self._paused = True
        out_THD = _DummyAttention(self.total).attend(q_THD, k_TKD, v_TKD, call).contiguous()
        self._paused = False
        self.operations.append(
            _Operation(call, (q_THD, k_TKD, v_TKD), {}, [q_THD, k_TKD, v_TKD], [out_THD])
        )
        return out_THD

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        out = func(*args, **options)
        if self._paused:
            return out
        if any(tag in func.tags for tag in FORBIDDEN):
            raise NotCapturable(str(func))
        operation = _Operation(func, args, options, list(_tensors((args, options))), [])
        input_storages = {_storage(tensor) for tensor in operation.inputs}
        outputs = [out] if isinstance(out, Tensor) else list(_tensors(out))
        if func._schema.is_mutable:
            self.operations.append(operation)
        elif input_storages and any(_storage(tensor) not in input_storages for tensor in outputs):
            operation.outputs = outputs
            self.operations.append(operation)
        # The rest are views, which stay valid because buffers do, and constants, which depend on no input.
        return out


def _storage(tensor: Tensor) -> int:
    """The identity of a tensor's storage. Unique while the tensor lives, and operations keep theirs alive."""
    identity: int = tensor.untyped_storage()._cdata
    return identity


class _CpuGraph:
    """Runs the segments between attention calls, and attention on the current context."""

    def __init__(
        self,
        tokens_T: Tensor,
        positions_T: Tensor,
        segments: list[list[Action]],
        calls: Any,
        out: Any,
    ) -> None:
        self._tokens_T, self._positions_T, self._size = tokens_T, positions_T, tokens_T.shape[0]
        self._segments, self._calls, self._output_TD = segments, calls, out

    @torch.inference_mode()
    @np.errstate(all="ignore")  # as in torch: infinities and NaN pass through
    def __call__(self, tokens_T: Tensor, positions_T: Tensor) -> Tensor:
        """Hidden states of these tokens, in a buffer that the next call overwrites."""
        count, context = tokens_T.shape[0], current_context()
        self._tokens_T[:count] = tokens_T
        self._positions_T[:count] = positions_T
        for segment, (call, q_THD, k_TKD, v_TKD, out_THD) in zip(
            self._segments, self._calls, strict=False
        ):
            for action in segment:
                action()
            if count == self._size:
                out_THD.copy_(context.attend(q_THD, k_TKD, v_TKD, call))
            else:
                out_THD[:count] = context.attend(q_THD[:count], k_TKD[:count], v_TKD[:count], call)
        for action in self._segments[-1]:
            action()
        output_TD: Tensor = self._output_TD[:count]
        return output_TD


def _assign_buffers(
    operations: list[_Operation], result: Tensor
) -> tuple[list[list[Action]], list[Any], Tensor]:
    """Give every output a buffer, which is reused after its last use."""
    last_use = {
        _storage(tensor): n
        for n, each in enumerate(operations)
        for tensor in (*each.inputs, *each.outputs)
    }
    last_use[_storage(result)] = len(operations)
    buffers: dict[int, Tensor] = {}
    free: dict[int, list[Tensor]] = {}
    segments: list[list[Action]] = [[]]
    calls = []

    def in_buffer(each: Any) -> Any:
        """A tensor as a view of its buffer; anything else unchanged."""
        if not isinstance(each, Tensor):
            return each
        if _storage(each) not in buffers:
            return each.detach()  # a weight, an input, or a constant
        flat = buffers[_storage(each)].view(each.dtype)
        return flat.as_strided(each.shape, each.stride(), each.storage_offset())

    for n, each in enumerate(operations):
        for tensor in each.outputs:
            if _storage(tensor) not in buffers:
                size = -(-tensor.untyped_storage().nbytes() // 64) * 64
                reusable = free.get(size)
                buffers[_storage(tensor)] = (
                    reusable.pop() if reusable else torch.empty(size, dtype=torch.uint8)
                )
        arguments, options, outputs = (
            tree_map(in_buffer, part) for part in (each.arguments, each.options, each.outputs)
        )
        if isinstance(each.function, AttentionCall):
            calls.append((each.function, *arguments, *outputs))
            segments.append([])
        else:
            segments[-1] += _build_actions(each.function, arguments, options, outputs)
        for storage in {_storage(tensor) for tensor in (*each.inputs, *each.outputs)}:
            if last_use[storage] == n and storage in buffers:
                free.setdefault(buffers[storage].numel(), []).append(buffers[storage])
    return segments, calls, in_buffer(result)


def _build_actions(
    function: Any, arguments: Any, options: Any, outputs: list[Tensor]
) -> list[Action]:
    """The calls that repeat an operation and write to `outputs`."""
    call_again = partial(function, *arguments, **options)
    if not outputs:
        return [call_again]
    if len(outputs) == 1:
        (out,) = outputs
        if (
            all(each.dtype in NUMPY_DTYPES for each in _tensors((arguments, out)))
            and out.dtype == torch.float32
        ):
            inputs = tree_map(_to_numpy, arguments)
            if numpy_actions := _numpy_actions(function, inputs, options, out.numpy()):
                return numpy_actions
        name = function._schema.name.removeprefix("aten::")
        if binding := getattr(torch, name, None) or getattr(torch._C._nn, name, None):
            action = _into(partial(binding, **options) if options else binding, arguments, out)
            try:
                action()
            except (TypeError, RuntimeError):  # it takes no out=
                return [partial(_run_and_copy, call_again, outputs)]
            return [action]
    return [partial(_run_and_copy, call_again, outputs)]


def _to_numpy(each: Any) -> Any:
    """Floats become arrays, which numpy handles with less overhead."""
    return (
        each.numpy()
        if isinstance(each, Tensor)
        else np.array(each, np.float32)
        if isinstance(each, float)
        else each
    )


def _into(binding: Any, arguments: Any, out: Tensor) -> Action:
    """binding(*arguments, out=out), in the form with the least Python overhead."""
    if len(arguments) == 2:
        first, second = arguments
        return lambda: binding(first, second, out=out)
    return lambda: binding(*arguments, out=out)


def _run_and_copy(call_again: Action, outputs: list[Tensor]) -> None:
    for target, source in zip(outputs, _tensors(call_again()), strict=True):
        target.copy_(source)


def _numpy_actions(function: Any, inputs: Any, options: Any, out: Any) -> list[Action]:
    """The same operation in numpy; empty if there is none."""
    if function == aten._to_copy.default:
        return [partial(np.copyto, out, inputs[0], "unsafe")]
    if options:
        return []
    if function in NUMPY_FUNCTIONS:
        return [partial(NUMPY_FUNCTIONS[function], *inputs, out)]
    if function == aten.clone.default:
        return [partial(np.copyto, out, inputs[0])]
    if function == aten.pow.Tensor_Scalar and inputs[1] == 2:
        return [partial(np.multiply, inputs[0], inputs[0], out)]
    if function == aten.rsqrt.default:
        return [
            partial(np.sqrt, inputs[0], out),
            partial(np.divide, np.array(1, np.float32), out, out),
        ]
    if function == aten.mean.dim and inputs[1:] == ([-1], True):
        count = np.array(inputs[0].shape[-1], np.float32)
        return [
            partial(np.add.reduce, inputs[0], -1, None, out, True),
            partial(np.divide, out, count, out),
        ]
    if function == aten.bmm.default and inputs[0].shape[-1] == 1:
        return [partial(np.multiply, *inputs, out)]
    if function == aten.embedding.default and len(inputs) <= 3:
        return [partial(np.take, inputs[0], inputs[1], 0, out, "clip")]
    if function == aten.cat.default:
        dim = inputs[1] if len(inputs) > 1 else 0
        ends = np.cumsum([0, *(each.shape[dim] for each in inputs[0])]).tolist()
        slices = [out.swapaxes(0, dim)[start:end].swapaxes(0, dim) for start, end in pairwise(ends)]
        return [
            partial(np.copyto, target, each) for target, each in zip(slices, inputs[0], strict=True)
        ]
    return []


def _tensors(nested: Any) -> Iterator[Tensor]:
    return (each for each in tree_leaves(nested) if isinstance(each, Tensor))
