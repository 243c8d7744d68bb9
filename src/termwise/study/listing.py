"""What `termwise variants` says: of all variants a line each, of one everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from termwise.data.sizes import counted, in_bytes

if TYPE_CHECKING:
    from rich.console import Group


def all_variants(width: int = 64, length: int = 8192) -> dict[str, Any]:
    """Every name of the catalogue and the groups, with formula, state, equal names, cancelled parts and notes."""
    from termwise.attention.catalogue import catalogue

    names = catalogue.groups()["all"]
    return {
        "length": length,
        "width": width,
        "groups": catalogue.groups(),
        "variants": [one_variant(name, width, length) for name in names],
    }


def one_variant(name: str, width: int = 64, length: int = 8192) -> dict[str, Any]:
    """One variant in full; costs are of one head and sequence. ValueError with the near name for an unknown one."""
    from termwise.attention.catalogue import LayerOptions, catalogue
    from termwise.attention.cost import cost

    variant = catalogue.variant(name)
    spec, found = variant.spec, cost(variant.spec, key_width=width, value_width=width, length=length)
    plain = LayerOptions().to_dict()
    return {
        "name": variant.name,
        "short_name": spec.short_name,
        "formula": spec.formula,
        "layer": {key: value for key, value in variant.layer.to_dict().items() if value != plain[key]},
        "equal_names": catalogue.equal_names(name),
        "parts_that_cancel": list(spec.explain()),
        "note": variant.note,
        "source": variant.source,
        "is_constant_size": spec.is_constant_size,
        "width": width,
        "length": length,
        "features": found.features,
        "state_bytes": found.state_bytes,
        "cache_bytes": found.cache_bytes,
        "cache_bytes_half": found.cache_bytes_half,
        "break_even": found.break_even,
        "break_even_half": found.break_even_half,
        "step_operations": found.step_operations,
    }


def table(listed: dict[str, Any]) -> Group:
    """All variants for a terminal, equal values once, at the first of their names."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    parts: list[Any] = [
        Text(f"States are those of one head of width {listed['width']} after {counted(listed['length'], 'token')}.\n")
    ]
    shown: set[str] = set()
    for one in listed["variants"]:
        if shown.isdisjoint(one["equal_names"]):
            parts.append(Text(one["name"], style="bold"))
            lines = [one["formula"], f"state {state_in_words(one)}", also(one)]
            parts.append(Padding(Text("\n".join(line for line in lines if line)), (0, 0, 0, 4)))
            shown.add(one["name"])
    parts.append(Text("\nGroups for --variants", style="bold"))
    for name, members in listed["groups"].items():
        told = ", ".join(members) if len(members) < 20 else f"{len(members)} names"
        parts.append(Padding(Text(f"{name}: {told}"), (0, 0, 0, 4)))
    parts.append(Text("\nOne in full: termwise variants NAME. Any short name works too, e.g. taylor:0..2@mean+w64s4"))
    return Group(*parts)


def state_in_words(one: dict[str, Any]) -> str:
    """The state's size, and whether it is constant."""
    kind = "constant" if one["is_constant_size"] else "grows"
    return f"{in_bytes(one['state_bytes'])}, {kind}"


def also(one: dict[str, Any]) -> str:
    """Equal names, layer options, cancelled parts and the note, in one cell."""
    parts = [f"= {', '.join(one['equal_names'])}"] if one["equal_names"] else []
    parts += [_layer(one["layer"])] if one["layer"] else []
    parts += list(one["parts_that_cancel"])
    parts += [one["note"]] if one["note"] and not one["note"].startswith("equal to") else []
    return "; ".join(parts)


def _layer(options: dict[str, Any]) -> str:
    words = {
        "rotary": "no rotary",
        "qk_norm": "q/k norm",
        "value_step": "values times softplus(w.x)",
        "output_norm": "RMS over all heads",
    }
    named = [words[key] for key in options if key in words]
    if "conv_size" in options:
        named.append(f"convolution of {options['conv_size']}" + (" + SiLU" if options.get("conv_activation") else ""))
    if "blank_tokens" in options:
        named.append(f"{options['blank_tokens']} blank tokens in front")
    return ", ".join(named)


def text(one: dict[str, Any]) -> Group:
    """One variant for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, told in _facts(one):
        if told:
            grid.add_row(label, Text(told))
    return Group(Text(one["name"], style="bold"), grid)


def _facts(one: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("formula", one["formula"]),
        ("short name", one["short_name"]),
        ("layer", _layer(one["layer"])),
        ("equal names", ", ".join(one["equal_names"])),
        ("cancels", "; ".join(one["parts_that_cancel"])),
        ("note", one["note"]),
        ("source", one["source"]),
        ("of one head", f"keys and values of width {one['width']}, {counted(one['length'], 'token')}, fp32"),
    ]
    rows.append(("state", state_in_words(one) + (f", {one['features']:,} features" if one["features"] else "")))
    rows.append(
        ("key/value cache", f"{in_bytes(one['cache_bytes'])} in fp32, {in_bytes(one['cache_bytes_half'])} in bf16")
    )
    if one["break_even"] is not None:
        even = f"smaller than an fp32 cache from {one['break_even']:,} tokens on, than a bf16 cache from {one['break_even_half']:,}"
        rows.append(("break-even", even))
    rows.append(("a decoded token", f"{one['step_operations']:,} multiplications and additions"))
    return rows
