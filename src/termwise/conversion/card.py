"""The README.md of a converted folder: what was kept, cut, measured and not measured, and the way back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from termwise.conversion.losses import (
    CONVERTED,
    ORIGINAL,
    ORIGINAL_TUNED,
    SLOTS,
    TUNED,
    WINDOW,
    Documents,
    difference,
    mean,
)
from termwise.conversion.plan import OF_OTHERS, Plan
from termwise.conversion.sizes import Sizes
from termwise.data.sizes import counted

ROWS = (ORIGINAL, CONVERTED, TUNED, ORIGINAL_TUNED, WINDOW, SLOTS)


@dataclass(frozen=True)
class Told:
    """What a card says beside the plan: where the original is, what was measured, how it was tuned."""

    place: str
    weights: str
    family: str
    dtype: str
    sizes: Sizes
    losses: Mapping[str, Documents]
    recovery: tuple[float, float | None, float | None] | None
    tuning: Mapping[str, Any] | None
    text: Sequence[str]
    reasons: Mapping[str, str]


def card(plan: Plan, told: Told) -> str:
    """The whole file."""
    parts = [
        f"# {told.place.rstrip('/').rsplit('/', 1)[-1]}, converted by termwise",
        _kept(plan),
        "## Sizes\n\n" + _sizes(told.sizes),
        "## Measured\n\n" + _measured(plan, told),
        "## Not measured\n\n" + _not_measured(plan, told),
        "## The way back\n\n" + _way_back(told),
        "## What can load it\n\n" + LOADING,
    ]
    return "\n\n".join(parts) + "\n"


LOADING = """transformers, after `import termwise.models`:

    import termwise.models
    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained(FOLDER)

and `termwise generate FOLDER --prompt TEXT`. Servers that bring their own model code (vLLM, llama.cpp, TGI, SGLang) do not know its attention and
cannot load it today."""


def _kept(plan: Plan) -> str:
    counts = Counter(
        spec.short_name for layer in plan.layers for group in layer for spec in [group.spec] * len(group.kv_heads)
    )
    total = sum(counts.values())
    lines = [f"{counted(total, 'kv head')} in {counted(len(plan.layers), 'layer')}, by the plan `{plan.name}`:", ""]
    lines += ["| kv heads | attention | what becomes of far keys |", "|---|---|---|"]
    specs = {group.spec.short_name: group.spec for layer in plan.layers for group in layer}
    for name, count in counts.most_common():
        lines.append(f"| {count} | `{name}` | {_far(specs[name])} |")
    cut = total - counts.get("exp", 0)
    lines += [
        "",
        f"Kept exact: {counted(total - cut, 'kv head')}. Reduced: {cut}. All weights of the original are kept.",
    ]
    return "## Kept and cut\n\n" + "\n".join(lines)


def _far(spec: Any) -> str:
    if not spec.is_constant_size:
        return "kept, in a cache that grows"
    return "summed into a state of constant size" if spec.has_tail else "dropped"


def _sizes(sizes: Sizes) -> str:
    return (
        f"One sequence up to {sizes.context:,} tokens, all layers: states at most {sizes.state:,} B (kept in fp32); the original's cache "
        f"{sizes.cache:,} B in fp32 ({sizes.state / sizes.cache:.1%} of it) and {sizes.cache_half:,} B in bf16 "
        f"({sizes.state / sizes.cache_half:.1%}). Arithmetic of live tensors; measured on a machine by `termwise bench`."
    )


def _measured(plan: Plan, told: Told) -> str:
    if not told.losses:
        lines = ["No text was given to the conversion, so it measured no loss."]
    else:
        lines = [f"Held-out loss on {', '.join(told.text)}, on what no tuning here saw:", "", *_table(told)]
        if told.recovery is not None:
            value, low, high = told.recovery
            interval = "no interval" if low is None or high is None else f"[{low:.0%}, {high:.0%}]"
            lines += ["", f"Recovered by tuning: {value:.1%} ({interval}) of what conversion lost."]
    if told.tuning:
        lines += ["", "Tuned: " + ", ".join(f"{name} {value}" for name, value in told.tuning.items()) + "."]
    if plan.is_of_others(told.weights):
        lines += ["", OF_OTHERS]
        return "\n".join(lines)
    for name in ("predicted", "measured"):
        if plan.document.get(name):
            lines += [
                "",
                f"The plan, {name}: " + ", ".join(f"{key} {value}" for key, value in plan.document[name].items()),
            ]
    return "\n".join(lines)


def _table(told: Told) -> list[str]:
    lines = ["| model | nats/token | over the original | 95 % interval over documents |", "|---|---|---|---|"]
    for name in (row for row in ROWS if row in told.losses):
        value, low, high = difference(told.losses[name], told.losses[ORIGINAL])
        interval = "too few documents" if low is None else f"{low:+.4f} to {high:+.4f}"
        over = " | " if name == ORIGINAL else f"{value:+.4f} | {interval}"
        lines.append(f"| {name} | {mean(told.losses[name]):.4f} | {over} |")
    return lines


def _not_measured(plan: Plan, told: Told) -> str:
    lines = [f"- {name}: {reason}" for name, reason in told.reasons.items()]
    if not told.losses:
        lines.append("- Loss: give `--text FILE` to `termwise convert`, or use `termwise evaluate`.")
    lines += [
        "- Downstream tasks, and anything at contexts longer than those above.",
        "- Agreement of its forms on this machine: `termwise verify FOLDER`. Speed: `termwise bench FOLDER`.",
    ]
    return "\n".join(lines)


def _way_back(told: Told) -> str:
    if told.tuning:
        way = "its weights were tuned, so the way back is the original folder."
    else:
        way = (
            "converting keeps every weight, so this gives the original's outputs again:\n\n"
            "    from termwise.attention.spec import AttentionSpec\n"
            "    from termwise.models import TermwiseForCausalLM\n"
            "    model = TermwiseForCausalLM.from_pretrained(FOLDER, attention=AttentionSpec())"
        )
    return f"The original is `{told.place}` ({told.family}, {told.dtype}); {way}"
