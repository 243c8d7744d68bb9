"""How many parameters a model has, and which of them its attention adds."""

from __future__ import annotations

from torch import nn


def num_parameters(model: nn.Module) -> int:
    """Parameters of a model, tied ones counted once."""
    return sum(p.numel() for p in model.parameters())


def extra_parameters(model: nn.Module) -> dict[str, int]:
    """Parameters that a plain Llama of the same shape does not have, by name over all layers: what explains a difference in size.

    >>> from termwise.models import build
    >>> extra_parameters(build("exp|l2+ga", preset="recall", vocab_size=17))
    {'output_gate_proj': 260}
    """
    plain = (
        "embed_tokens",
        "lm_head",
        "layernorm",
        ".mlp.",
        "model.norm",
        *(f"{x}_proj" for x in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o")),
    )
    found: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if not any(part in name for part in plain):
            kind = name.removesuffix(".weight").removesuffix(".bias").rsplit(".", 1)[-1]
            found[kind] = found.get(kind, 0) + parameter.numel()
    return found
