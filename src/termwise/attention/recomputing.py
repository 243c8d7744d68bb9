"""A loop over blocks whose backward pass computes them anew: training in chunks keeps a few states and nothing else.

    forward    state_0 -> block 1 -> state_1 -> ... -> block n -> state_n;  kept: the inputs and every sqrt(n)-th state
    backward   from the last segment of sqrt(n) blocks to the first: its states again, without reading; then from its last
               block to its first: the block again, with its graph, for the gradients of its inputs and of the state before it

At most 2 sqrt(n) states and the graph of one block are alive at any moment. Plain nested checkpoints would read every block
three times, and add a gradient of full length for every slice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from termwise.attention.folding import Keys
from termwise.attention.reading import Queries
from termwise.attention.rows import RowCounts
from termwise.attention.state import AttentionState

# (state, keys, queries, parameters, row counts, whether the moments may be added to in place) -> (outputs, next state).
# Without keys nothing enters the state, without queries nothing is read.
Step = Callable[..., tuple[Tensor | None, AttentionState]]


@dataclass(frozen=True)
class Inputs:
    """What a loop reads: keys and queries are cut into blocks along their length, parameters serve every block."""

    state: AttentionState
    keys: Keys | None
    queries: Queries | None
    parameters: dict[str, Tensor]

    def block(self, start: int, stop: int) -> Inputs:
        keys = None if self.keys is None else self.keys.slice(start, stop)
        queries = None if self.queries is None else self.queries.slice(start, stop)
        return dataclasses.replace(self, keys=keys, queries=queries)

    @property
    def needs_grad(self) -> bool:
        return any(t.requires_grad for t in self.tensors.values())

    @property
    def tensors(self) -> dict[tuple[str, str], Tensor]:
        """Every tensor under its part and field."""
        parts = {"state": self.state, "keys": self.keys, "queries": self.queries}
        found = {
            (part, name): t for part, held in parts.items() if held is not None for name, t in _fields(held).items()
        }
        return found | {("parameters", name): t for name, t in self.parameters.items()}

    def holding(self, tensors: dict[tuple[str, str], Any]) -> Inputs:
        """The same parts with these tensors in them."""

        def of(part: str) -> dict[str, Any]:
            return {name: t for (owner, name), t in tensors.items() if owner == part}

        return Inputs(
            state=dataclasses.replace(self.state, **of("state")),
            keys=None if self.keys is None else dataclasses.replace(self.keys, **of("keys")),
            queries=None if self.queries is None else dataclasses.replace(self.queries, **of("queries")),
            parameters=of("parameters"),
        )


def _fields(part: AttentionState | Keys | Queries) -> dict[str, Tensor]:
    values = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
    return {name: t for name, t in values.items() if isinstance(t, Tensor)}


def _floating(state: AttentionState) -> dict[str, Tensor]:
    return {name: t for name, t in state.tensors.items() if t.is_floating_point()}


class Outputs:
    """Outputs (B, G, R, block, e) of consecutive blocks, in one tensor from the start unless gradients flow through them."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.whole: Tensor | None = None
        self.parts: list[Tensor] = []

    def put(self, start: int, out: Tensor | None) -> None:
        if out is None:
            return
        if out.requires_grad or out.shape[3] == self.length:
            self.parts.append(out)
            return
        batch, kv_heads, group, columns, e = out.shape
        if self.whole is None:
            # As `attend` hands it back: (B, T, H, e) without gaps.
            self.whole = out.new_empty(batch, self.length, kv_heads, group, e).permute(0, 2, 3, 1, 4)
        self.whole[:, :, :, start : start + columns] = out

    @property
    def joined(self) -> Tensor | None:
        """None where nothing was read."""
        return torch.cat(self.parts, dim=3) if self.parts else self.whole


def run_recomputing(
    step: Step,
    inputs: Inputs,
    bounds: Sequence[tuple[int, int]],
    row_counts: RowCounts | None,
    reading_matters: bool = False,
) -> tuple[Tensor | None, AttentionState]:
    """Outputs of all blocks, joined along the queries, and the last state.

    `reading_matters`: states depend on what the queries have read. Gradients reach every tensor of `inputs`; bad rows are
    counted in the forward pass alone. Errors: RuntimeError for a gradient of a gradient.
    """
    tensors = inputs.tensors
    shell = inputs.holding(dict.fromkeys(tensors, torch.empty(0)))
    loop = _Loop(step, shell, tuple(tensors), tuple(bounds), reading_matters)
    out, state, *changed = _Recomputing.apply(loop, row_counts, *tensors.values())
    return out, dataclasses.replace(state, **dict(zip(_floating(state), changed, strict=True)))


@dataclass(frozen=True)
class _Loop:
    """The loop without its tensors, which autograd holds."""

    step: Step
    shell: Inputs
    names: tuple[tuple[str, str], ...]
    bounds: tuple[tuple[int, int], ...]
    reading_matters: bool

    @property
    def segment(self) -> int:
        """Blocks from one kept state to the next: ceil(sqrt(n))."""
        return isqrt(len(self.bounds) - 1) + 1

    def inputs(self, tensors: Sequence[Tensor]) -> Inputs:
        return self.shell.holding(dict(zip(self.names, tensors, strict=True)))

    def run(
        self, block: Inputs, row_counts: RowCounts | None = None, is_ours: bool = False
    ) -> tuple[Tensor | None, AttentionState]:
        return self.step(block.state, block.keys, block.queries, block.parameters, row_counts, is_ours)


class _Recomputing(torch.autograd.Function):
    """(outputs, last state, its floating tensors once more: gradients flow through these)."""

    @staticmethod
    def forward(ctx: Any, loop: _Loop, row_counts: RowCounts | None, *tensors: Tensor) -> tuple[Any, ...]:
        inputs = loop.inputs(tensors)
        state, kept, outputs = inputs.state, [inputs.state], Outputs(loop.bounds[-1][1])
        for i, bounds in enumerate(loop.bounds):
            if i and i % loop.segment == 0:
                kept.append(state)
            is_ours = state.moments is not kept[-1].moments
            out, state = loop.run(dataclasses.replace(inputs.block(*bounds), state=state), row_counts, is_ours)
            outputs.put(bounds[0], out)
        # From the first block on every state has the fields of the last one.
        ctx.loop, ctx.shell, ctx.names = loop, _shell(state), tuple(state.tensors)
        ctx.floating = [("state", name) for name in _floating(state)]
        ctx.save_for_backward(*tensors, *(t for s in kept[1:] for t in s.tensors.values()))
        return outputs.joined, state, *_floating(state).values()

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, _: None, *grad_state: Tensor | None) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            # Left alone, the second gradient would lack what runs through here, without a word.
            raise RuntimeError(
                "create_graph=True asks for a gradient of a gradient, which form='chunked' does not offer; use form='parallel'"
            )
        loop, num_inputs = ctx.loop, len(ctx.loop.names)
        # Asked for once: inside torch's own checkpoint they can be unpacked once only.
        saved = ctx.saved_tensors
        inputs = loop.inputs(saved[:num_inputs])
        later = zip(*[iter(saved[num_inputs:])] * len(ctx.names), strict=True)
        kept = [inputs.state, *(dataclasses.replace(ctx.shell, **dict(zip(ctx.names, s, strict=True))) for s in later)]
        wanted = {name for name, needs in zip(loop.names, ctx.needs_input_grad[2:], strict=True) if needs}
        total = inputs.holding({name: torch.zeros_like(t) for name, t in inputs.tensors.items() if name[0] != "state"})
        behind = dict(zip(ctx.floating, grad_state, strict=True))
        # As in the forward pass, wherever backward() is called.
        with torch.autocast(saved[0].device.type, enabled=False):
            for bounds, state in _backwards(loop, inputs, kept):
                block = _leaves(dataclasses.replace(inputs.block(*bounds), state=state), wanted)
                part = None if grad_out is None else grad_out[..., slice(*bounds), :]
                found = _block_gradients(loop, block, part, behind)
                behind = {name: g for name, g in found.items() if name[0] == "state"}
                rows = total.block(*bounds).tensors
                for name in found.keys() - behind.keys():
                    rows[name].add_(found[name])
        gradients = {name: g for name, g in total.tensors.items() if name[0] != "state"} | behind
        return None, None, *(gradients.get(name) if name in wanted else None for name in loop.names)


def _shell(state: AttentionState) -> AttentionState:
    nothing: dict[str, Any] = dict.fromkeys(state.tensors, torch.empty(0))
    return dataclasses.replace(state, **nothing)


def _backwards(
    loop: _Loop, inputs: Inputs, kept: list[AttentionState]
) -> Iterator[tuple[tuple[int, int], AttentionState]]:
    """Bounds of every block and the state before it, from the last block to the first. Takes from `kept`."""
    while kept:
        first = (len(kept) - 1) * loop.segment
        states, bounds = [kept.pop()], loop.bounds[first : first + loop.segment]
        for start, stop in bounds[:-1]:
            block = dataclasses.replace(inputs.block(start, stop), state=states[-1])
            states.append(loop.run(block if loop.reading_matters else dataclasses.replace(block, queries=None))[1])
        for ends in reversed(bounds):
            yield ends, states.pop()


def _leaves(block: Inputs, wanted: set[tuple[str, str]]) -> Inputs:
    """The block on tensors of its own, which record gradients where they are wanted."""
    carries = any(owner in ("state", "keys") for owner, _ in wanted)

    def leaf(name: tuple[str, str], tensor: Tensor) -> Tensor:
        # These are made without gradients, so they have one only where the first state's is wanted.
        is_passed_on = name[0] == "state" and name[1] not in ("reference", "received", "given") and carries
        return tensor.detach().requires_grad_(tensor.is_floating_point() and (is_passed_on or name in wanted))

    return block.holding({name: leaf(name, t) for name, t in block.tensors.items()})


def _block_gradients(
    loop: _Loop, block: Inputs, grad_out: Tensor | None, behind: dict[tuple[str, str], Tensor | None]
) -> dict[tuple[str, str], Tensor]:
    """Gradients of the leaves of one block, from those of its outputs and of the state behind it."""
    with torch.enable_grad():
        out, after = loop.run(block)
    ends = [(out, grad_out), *((t, behind.get(("state", name))) for name, t in after.tensors.items())]
    reached = [(t, g) for t, g in ends if t is not None and g is not None and t.requires_grad]
    leaves = {name: t for name, t in block.tensors.items() if t.requires_grad}
    if not reached:
        return {}
    found = torch.autograd.grad(
        [t for t, _ in reached], list(leaves.values()), [g for _, g in reached], allow_unused=True
    )
    return {name: g for name, g in zip(leaves, found, strict=True) if g is not None}
