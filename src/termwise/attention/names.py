"""Short names of specs, and their parser. Names are read once, at the edge.

KERNEL[!][@mean[N]][+wN[sM][hK][eE]][|NORM][+gi|+gc][+gb|+ga][+decay]
KERNEL  exp, exp<5 (clamp 5), taylor:0..2, taylor:0,2, minimax3:0..4, power:2, elu1, relu, unit, identity, elu1^2
        (features squared), elu1:2 (product squared), relu/sqrtd (scale 1/sqrt(d)), relu<5 (clamp), drop
NORM    rowsum (default), rowsum>=1, rowsum>=1~ (no gradient), rowsum+0.0001, l2, l2e, rms, layer, count, identity,
        runninggate, runninggate>=1, runninggate*count; rms+0.001- (eps; no weight), layer-b (no bias), layer-w
@mean32 around the means of 32 groups of keys
+w64s4h32e16  window, sinks, heavy slots, keys leave every 16 (64 where h stands without e)
!       allow_negative      gi/gc  input gate, count gate      gb/ga  output gate before/after the norm
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from termwise.attention.kernels import MAPS, Drop, Exp, FeatureMap, Kernel, Minimax, Polynomial, Power
from termwise.attention.normalizers import L2, RMS, Count, Identity, Layer, Normalizer, RowSum, RunningGateSum
from termwise.attention.refusals import nearest

if TYPE_CHECKING:
    from termwise.attention.spec import AttentionSpec, Local

_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?"
_KERNEL_WORDS = ("exp", "taylor:0..2", "minimax3:0..2", "power:2", "drop", *MAPS)


def short_name(spec: AttentionSpec) -> str:
    name = (
        _kernel_name(spec.kernel)
        + ("!" if spec.kernel.allow_negative else "")
        + ("@mean" if spec.kernel.is_centered else "")
        + (str(spec.kernel.centers) if spec.kernel.centers > 1 else "")
    )
    if spec.local is not None:
        name += f"+{_local_name(spec.local)}"
    norm = _normalizer_name(spec.normalizer)
    name += "" if norm == "rowsum" else f"|{norm}"
    name += {False: "", True: "+gi", "count": "+gc"}[spec.input_gate]
    name += {None: "", "before": "+gb", "after": "+ga"}[spec.output_gate]
    return name + ("+decay" if spec.log_decay else "")


def _local_name(local: Local) -> str:
    from termwise.attention.spec import EVICT_EVERY

    name = f"w{local.window}" + (f"s{local.sinks}" if local.sinks else "") + (f"h{local.heavy}" if local.heavy else "")
    is_told = local.evict_every is not None and not (local.heavy and local.evict_every == EVICT_EVERY)
    return name + (f"e{local.evict_every}" if is_told else "")


def _kernel_name(kernel: Kernel) -> str:
    if isinstance(kernel, Polynomial):
        orders = kernel.orders
        is_range = len(orders) > 1 and orders == tuple(range(orders[0], orders[-1] + 1))
        span = f"{orders[0]}..{orders[-1]}" if is_range else ",".join(map(str, orders))
        if isinstance(kernel.coefficients, Minimax):
            return f"minimax{_text(kernel.coefficients.radius)}:{span}"
        if isinstance(kernel.coefficients, tuple):
            return f"polynomial:{span}({','.join(f'{_text(b)}' for b in kernel.coefficients)})"
        return f"taylor:{span}"
    if isinstance(kernel, Power):
        return f"power:{kernel.degree}"
    if isinstance(kernel, FeatureMap):
        power = "" if kernel.power == 1 else ("^" if kernel.power_of == "features" else ":") + str(kernel.power)
        return (
            kernel.name
            + power
            + ("/sqrtd" if kernel.by_root_width else "")
            + ("" if kernel.clamp is None else f"<{_text(kernel.clamp)}")
        )
    if isinstance(kernel, Exp):
        return "exp" if kernel.clamp is None else f"exp<{_text(kernel.clamp)}"
    return "drop"


def _text(number: float) -> str:
    """The shortest text that reads back as the same number; without a plus sign, which separates parts."""
    short = f"{number:g}"
    return (short if float(short) == number else repr(float(number))).replace("e+", "e")


def _normalizer_name(norm: Normalizer) -> str:
    if isinstance(norm, RowSum):
        floor = "" if norm.floor is None else f">={_text(norm.floor)}"
        return f"rowsum{floor}" + (f"+{_text(norm.eps)}" if norm.eps else "") + ("~" if norm.detach else "")
    if isinstance(norm, RunningGateSum):
        floor = "" if norm.floor is None else f">={_text(norm.floor)}"
        return f"runninggate{floor}" + ("*count" if norm.times_count else "")
    if isinstance(norm, L2):
        return "l2e" if norm.times_width else "l2"
    if isinstance(norm, RMS):
        eps = "" if norm.eps == RMS().eps else f"+{_text(norm.eps)}"
        return f"rms{eps}" + ("" if norm.weight else "-")
    if isinstance(norm, Layer):
        eps = "" if norm.eps == Layer().eps else f"+{_text(norm.eps)}"
        return (
            f"layer{eps}"
            + {(True, True): "", (True, False): "-b", (False, True): "-w", (False, False): "-"}[norm.weight, norm.bias]
        )
    return {Count: "count", Identity: "identity"}[type(norm)]


def parse(text: str) -> AttentionSpec:
    """The spec a short name stands for.

    >>> parse("taylor:0..2@mean+w64s4h32").local
    Local(window=64, sinks=4, heavy=32, evict_every=64)
    >>> parse("exp|l2+ga").output_gate
    'after'
    """
    from termwise.attention.spec import AttentionSpec, Local

    pattern = (
        r"(?P<kernel>[^!@+|]+?)(?P<forced>!)?(?P<mean>@mean(?P<centers>\d+)?)?"
        r"(?:\+w(?P<window>\d+)(?:s(?P<sinks>\d+))?(?:h(?P<heavy>\d+))?(?:e(?P<every>\d+))?)?"
        rf"(?:\|(?P<norm>[a-z0-9]+(?:>={_NUMBER})?(?:\+{_NUMBER})?(?:\*count)?[-~]?[bw]?))?"
        r"(?:\+(?P<input>gi|gc))?(?:\+(?P<output>gb|ga))?(?P<decay>\+decay)?"
    )
    found = re.fullmatch(pattern, text.strip())
    if not found:
        raise ValueError(
            f"{text!r} is no attention name; the form is KERNEL[!][@mean][+wNsMhKeE][|NORM][+gi][+ga][+decay], e.g. taylor:0..2@mean+w64s4"
        )
    local = None
    if found["window"]:
        every = int(found["every"]) if found["every"] else None
        local = Local(int(found["window"]), int(found["sinks"] or 0), int(found["heavy"] or 0), every)
    return AttentionSpec(
        kernel=_parse_kernel(
            found["kernel"], "mean" if found["mean"] else "zero", bool(found["forced"]), int(found["centers"] or 1)
        ),
        normalizer=_parse_normalizer(found["norm"] or "rowsum"),
        input_gate="count" if found["input"] == "gc" else found["input"] == "gi",
        output_gate={None: None, "gb": "before", "ga": "after"}[found["output"]],
        log_decay=bool(found["decay"]),
        local=local,
    )


def _parse_orders(text: str) -> tuple[int, ...]:
    if found := re.fullmatch(r"(\d+)\.\.(\d+)", text):
        return tuple(range(int(found[1]), int(found[2]) + 1))
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise ValueError(f"orders {text!r}; allowed are a range like 0..2 or a list like 0,2,4")
    return tuple(int(n) for n in text.split(","))


def _parse_kernel(text: str, center: str, forced: bool, centers: int) -> Kernel:
    coefficients: str | Minimax | tuple[float, ...]
    if found := re.fullmatch(rf"(taylor|minimax({_NUMBER})|polynomial):([0-9.,]+?)(?:\(([^)]*)\))?", text):
        coefficients = "taylor"
        if found[2]:
            coefficients = Minimax(float(found[2]))
        if found[4]:
            coefficients = tuple(float(b) for b in found[4].split(","))
        return Polynomial(_parse_orders(found[3]), coefficients, center, forced, centers)
    if center == "mean":
        raise ValueError(f"@mean belongs to a Taylor or minimax kernel, not to {text!r}; e.g. taylor:0..2@mean")
    kernel: Kernel | None = None
    if found := re.fullmatch(rf"exp(?:<({_NUMBER}))?", text):
        kernel = Exp(float(found[1]) if found[1] else None)
    elif found := re.fullmatch(r"power:(\d+)", text):
        kernel = Power(int(found[1]), allow_negative=forced)
    elif text == "drop":
        kernel = Drop()
    elif found := re.fullmatch(rf"({'|'.join(MAPS)})(?:([\^:])(\d+))?(/sqrtd)?(?:<({_NUMBER}))?", text):
        power_of = "product" if found[2] == ":" else "features"
        clamp = float(found[5]) if found[5] else None
        kernel = FeatureMap(
            found[1], int(found[3] or 1), power_of, clamp, by_root_width=bool(found[4]), allow_negative=forced
        )
    if kernel is None:
        raise ValueError(
            f"no kernel {text!r}{nearest(text, _KERNEL_WORDS)}; allowed are like {', '.join(_KERNEL_WORDS)}"
        )
    if forced and not kernel.allow_negative:
        raise ValueError(f"'!' (allow negative weights) has no meaning for {text!r}: its weights are never negative")
    return kernel


def _parse_normalizer(text: str) -> Normalizer:
    plain: dict[str, Normalizer] = {
        "rowsum": RowSum(), "count": Count(), "identity": Identity(), "l2": L2(), "l2e": L2(times_width=True),
        "rms": RMS(), "rms-": RMS(weight=False), "layer": Layer(), "layer-": Layer(weight=False, bias=False),
        "layer-b": Layer(bias=False), "layer-w": Layer(weight=False), "runninggate": RunningGateSum(),
    }  # fmt: skip
    if text in plain:
        return plain[text]
    if found := re.fullmatch(rf"rowsum(?:>=({_NUMBER}))?(?:\+({_NUMBER}))?(~)?", text):
        return RowSum(float(found[1]) if found[1] else None, float(found[2] or 0), bool(found[3]))
    if found := re.fullmatch(rf"runninggate(?:>=({_NUMBER}))?(\*count)?", text):
        return RunningGateSum(float(found[1]) if found[1] else None, bool(found[2]))
    if (found := re.fullmatch(rf"(rms|layer)\+({_NUMBER})(-[bw]?)?", text)) and found[1] + (found[3] or "") in plain:
        return dataclasses.replace(plain[found[1] + (found[3] or "")], eps=float(found[2]))  # type: ignore[type-var]
    raise ValueError(f"no normalizer {text!r}{nearest(text, plain)}; allowed are {', '.join(plain)}")
