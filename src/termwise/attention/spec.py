"""AttentionSpec: one point of the algebra, as a frozen value that refuses what cannot be."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from termwise.attention.kernels import Drop, Exp, FeatureMap, Kernel, Minimax, Polynomial, Power
from termwise.attention.normalizers import L2, RMS, Count, Identity, Layer, Normalizer, RowSum, RunningGateSum

EVICT_EVERY = 64  # keys, where heavy slots are asked for without saying
CALIBRATED = ("centers",)  # declared tensors that are set from real keys, not learned


@dataclass(frozen=True)
class Local:
    """Exact slots: the last `window` real keys, self included, and the first `sinks` real keys of each document.

    They use exp(x); all other keys use the kernel ("tail"). With `evict_every` keys leave only when the number of real keys
    seen, the new one included, is a multiple of it; until then they stay exact, at most window + sinks + heavy + evict_every - 1
    of them. `heavy`: so many of the others stay as well, those of the greatest received weight: what the group's queries have
    given the key so far (w / Z, summed), ties to the older one. `evict_every` is 64 where `heavy` is given without it.
    Source: Xiao et al. 2023 (sinks), Zhang et al. 2023 (heavy hitters); math: section 6.

    >>> Local(window=64, sinks=4, heavy=32).evict_every
    64
    """

    window: int
    sinks: int = 0
    heavy: int = 0
    evict_every: int | None = None

    def __post_init__(self) -> None:
        if self.evict_every is None and self.heavy:
            object.__setattr__(self, "evict_every", EVICT_EVERY)
        least = {"window": 1, "sinks": 0, "heavy": 0} | ({} if self.evict_every is None else {"evict_every": 1})
        for name, lowest in least.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise ValueError(f"Local: {name}={value!r}; allowed are whole numbers from {lowest}")

    def num_held(self, num_keys: int) -> int:
        """Exact slots after so many real keys, where keys leave at multiples of `evict_every`.

        >>> [Local(window=8, sinks=2, heavy=4, evict_every=16).num_held(n) for n in (15, 16, 31, 32)]
        [15, 14, 29, 14]
        """
        assert self.evict_every is not None
        waiting = num_keys % self.evict_every
        return min(num_keys - waiting, self.window + self.sinks + self.heavy) + waiting

    @property
    def formula(self) -> str:
        """Which keys are exact, in words."""
        text = f"the last {self.window}" + (f" and first {self.sinks}" if self.sinks else "") + " keys"
        text += f" and the {self.heavy} of most weight" if self.heavy else ""
        return text + (f", others leave every {self.evict_every} keys" if self.evict_every else "")


@dataclass(frozen=True)
class AttentionSpec:
    """Attention composed from its parts.

        w_ts = exp(A_t - A_s) kernel(x_ts)      x_ts = scale q_t.k_s,  A the running sum of log_decay
        U_t = sum_s w_ts i_s v_s,  Z_t = sum_s w_ts,  o_t = g'_t normalize(g_t U_t, Z_t, c_t)

    `input_gate`: True, a tensor i is handed over; "count", i_s = c_s^-sigmoid(p) with the learned parameter
    `count_exponent` p per kv head (Cottention). `output_gate`: "before" or "after" the norm. `log_decay`: a tensor of
    log decays (<= 0) is handed over. `local`: exact slots. Pairs that cannot be are refused with the way out.

    >>> AttentionSpec(Polynomial((0, 1, 2)), RowSum()).short_name
    'taylor:0..2'
    """

    kernel: Kernel = dataclasses.field(default_factory=Exp)
    normalizer: Normalizer = dataclasses.field(default_factory=RowSum)
    input_gate: bool | Literal["count"] = False
    output_gate: Literal["before", "after"] | None = None
    log_decay: bool = False
    local: Local | None = None

    def __post_init__(self) -> None:
        from termwise.attention.refusals import check_spec

        check_spec(self)

    # What the forms ask -------------------------------------------------------------------------------------------

    @property
    def has_tail(self) -> bool:
        """Whether a polynomial state exists (a finite kernel that is not Drop)."""
        return bool(self.kernel.dense)

    @property
    def evicts(self) -> bool:
        """Whether keys leave the exact slots only at fixed positions (`evict_every`)."""
        return self.local is not None and self.local.evict_every is not None

    @property
    def is_constant_size(self) -> bool:
        """Whether the state stays of constant size; otherwise it is the growing key/value cache."""
        return self.kernel.is_finite

    @property
    def is_softmax_shaped(self) -> bool:
        """Every weight is an exponential and the normalizer reads only the softmax output: fused softmax serves it."""
        exponential = isinstance(self.kernel, (Exp, Drop)) and not self.evicts
        reads_softmax = self.normalizer.is_scale_free or (
            isinstance(self.normalizer, RowSum) and self.normalizer.is_pure and not self.normalizer.detach
        )
        return exponential and getattr(self.kernel, "clamp", None) is None and reads_softmax

    def parameters(self, value_width: int) -> dict[str, tuple[str | int, ...]]:
        """Tensors it declares: name -> shape, "heads", "kv_heads" and "key_width" standing for their numbers.

        All are learned but those in CALIBRATED: `centers`, which no gradient reaches, is a constant of the head (a buffer).
        """
        declared = dict(self.normalizer.parameters(value_width))
        if self.input_gate == "count":
            declared["count_exponent"] = ("kv_heads",)
        if self.kernel.centers > 1:
            declared["centers"] = ("kv_heads", self.kernel.centers, "key_width")
        return declared

    @property
    def needs_running_gate(self) -> bool:
        """Whether `parameters` must hold `running_gate_score`, a tensor (batch, length, kv heads) made from the input."""
        return isinstance(self.normalizer, RunningGateSum)

    # What people read ---------------------------------------------------------------------------------------------

    @property
    def formula(self) -> str:
        value = {False: "v", True: "i v", "count": "count^-sigmoid(p) v"}[self.input_gate]
        decay = "exp(A_t - A_s) " if self.log_decay else ""
        near = f" (exp(x) for {self.local.formula})" if self.local else ""
        gate = {None: "", "before": ", U gated first", "after": ", then gated"}[self.output_gate]
        return f"w = {decay}{self.kernel.formula}{near};  U = sum w {value};  o = {self.normalizer.formula}{gate}"

    @property
    def short_name(self) -> str:
        from termwise.attention.names import short_name

        return short_name(self)

    def explain(self) -> tuple[str, ...]:
        """Parts that cancel and values that are equal, each in one sentence."""
        from termwise.attention.redundancy import explain

        return explain(self)

    def canonical(self) -> AttentionSpec:
        """The same function with every cancelled part removed: equal canonical specs compute the same outputs."""
        from termwise.attention.redundancy import canonical

        return canonical(self)

    # JSON ---------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        return {
            "kernel": _to_dict(self.kernel),
            "normalizer": _to_dict(self.normalizer),
            "input_gate": self.input_gate,
            "output_gate": self.output_gate,
            "log_decay": self.log_decay,
            "local": None if self.local is None else dataclasses.asdict(self.local),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AttentionSpec:
        from termwise.attention.refusals import check_fields

        check_fields("AttentionSpec", data, [f.name for f in dataclasses.fields(cls)])
        data = dict(data)
        if "kernel" in data:
            data["kernel"] = _from_dict(data["kernel"], (Exp, Polynomial, Power, FeatureMap, Drop), "kernel")
        if "normalizer" in data:
            choices = (RowSum, Count, L2, RMS, Layer, RunningGateSum, Identity)
            data["normalizer"] = _from_dict(data["normalizer"], choices, "normalizer")
        if data.get("local") is not None:
            data["local"] = _from_dict({"type": "Local", **data["local"]}, (Local,), "local")
        return cls(**data)


def _to_dict(part: Kernel | Normalizer | Minimax) -> dict[str, Any]:
    out: dict[str, Any] = {"type": type(part).__name__}
    for field in dataclasses.fields(part):  # type: ignore[arg-type]
        value = getattr(part, field.name)
        out[field.name] = (
            _to_dict(value) if isinstance(value, Minimax) else list(value) if isinstance(value, tuple) else value
        )
    return out


def _from_dict(data: Any, choices: tuple[type, ...], where: str) -> Any:
    from termwise.attention.refusals import check_fields, nearest

    names = {c.__name__: c for c in choices}
    if not isinstance(data, dict) or data.get("type") not in names:
        given = data.get("type") if isinstance(data, dict) else data
        raise ValueError(f"{where}: type {given!r}{nearest(given, names)}; allowed are {', '.join(names)}")
    kind = names[data["type"]]
    rest = {key: value for key, value in data.items() if key != "type"}
    check_fields(f"{where} {kind.__name__}", rest, [f.name for f in dataclasses.fields(kind)])
    for key, value in rest.items():
        if isinstance(value, dict):
            rest[key] = _from_dict(value, (Minimax,), f"{where}.{key}")
        elif isinstance(value, list):
            rest[key] = tuple(value)
    try:
        return kind(**rest)
    except TypeError as error:
        raise ValueError(f"{where} {kind.__name__}: {error}") from None
