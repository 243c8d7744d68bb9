"""Run folders of every command with planted records: what the commands write, without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from termwise.results import Record, RunFolder

MACHINE = {
    "cpu": "AMD EPYC 9654",
    "cores": 2,
    "memory": 2**34,
    "platform": "Linux-6.1-x86_64-with-glibc2.36",
    "python": "3.11",
}
CREATED = "2026-02-01T10:00:00.000+00:00"
CONTEXT = 4096
SOAK = ("drift", "far", "twin_states", "memory", "bad_rows", "step_time")
NUM_DOCUMENTS = 12


class Planted:
    """A run folder being filled."""

    def __init__(self, path: Path, command: str, resolved: dict[str, Any], **run: Any) -> None:
        self.path, self.lines = path, []
        self.folder = RunFolder.create(path, command, {"out": str(path)}, resolved)
        self.folder.update(**({"machine": MACHINE, "created": CREATED} | run))

    def add(self, kind: str, metric: str, value: float | None, unit: str = "nats/token", **fields: Any) -> None:
        """A record; fields that a record does not have make its subject."""
        record_fields = Record.__dataclass_fields__.keys() - (
            {"method"} if self.folder.run["command"] == "plan" else ()
        )
        own = {name: fields.pop(name) for name in list(fields) if name in record_fields}
        if value is None:
            own = {"status": "not_measured", "reason": "not asked for"} | own
        self.lines.append(
            Record(run_id="r", kind=kind, subject=fields, metric=metric, value=value, unit=unit, **own).to_json()
        )

    def between(
        self, kind: str, metric: str, ends: tuple[float, float] | None, unit: str = "nats/token", **fields: Any
    ) -> None:
        """A record in the middle of its interval; None leaves it unmeasured."""
        if ends is None:
            self.add(kind, metric, None, unit, **fields)
            return
        low, high = ends
        self.add(kind, metric, (low + high) / 2, unit, low=low, high=high, level=0.95, **{"n": 8} | fields)

    def write(self) -> Path:
        """All lines on disk; the folder."""
        with open(self.path / "records.jsonl", "a", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in self.lines)
        self.lines = []
        return self.path


def documents(made: Planted, name: str, loss: float, **subject: Any) -> None:
    """Held-out documents of one model, each a little different, and their total."""
    for number in range(NUM_DOCUMENTS):
        value = loss + 0.002 * ((7 * number) % 5 - 2)
        made.add("loss", "held_out_document", value, variant=name, document=str(number), n=300, **subject)
    made.add("loss", "held_out_nats", loss, variant=name, n=300 * NUM_DOCUMENTS, **subject)


def convert(
    path: Path,
    *,
    rise: tuple[float, float] | None = (-0.01, 0.03),
    over_window: float | None = -0.2,
    share: float | None = 0.25,
    context: int = CONTEXT,
    text_context: int | None = CONTEXT,
    tune: float | None = None,
    plan: str = "taylor:0..2@mean+w64s4",
    **resolved: Any,
) -> Path:
    """A conversion whose loss rises within `rise`, by `over_window` less than a window of equal bytes."""
    final = "converted, tuned" if tune else "converted"
    settings = {
        "model": "models/original",
        "plan": plan,
        "plan_hash": "abc",
        "tune": tune,
        "steps": None,
        "context": None,
    }
    made = Planted(path, "convert", settings | resolved, finished=True, heads={"taylor:0..2@mean+w64s4": 6})
    if text_context:
        made.folder.update(text_context=text_context)
    documents(made, "original", 3.0)
    documents(made, final, 3.01)
    if over_window is None:
        made.add("loss", "held_out_nats", None, variant="window of equal bytes", reason="every head is exact")
    else:
        documents(made, "window of equal bytes", 3.01 - over_window)
    made.between("loss", "difference", rise, variant=final, baseline="original")
    if share is not None:
        for metric, value in (("state", share * 1_000_000), ("cache", 2_000_000), ("cache_half", 1_000_000)):
            made.add("memory", metric, value, "B", variant="converted", length=context)
    return made.write()


def bench(
    path: Path,
    name: str,
    *,
    ratio: tuple[float, float, float] | None = (2.0, 1.9, 2.1),
    measure: str = "step",
    lengths: tuple[int, ...] = (1024, CONTEXT),
    num_repeats: int = 9,
    is_folder: bool = True,
    state: float | None = None,
    cpu: str = MACHINE["cpu"],
    created: str = CREATED,
    **resolved: Any,
) -> Path:
    """A benchmark of one subject; `ratio`: baseline / candidate with percentiles 10 and 90."""
    settings = {"variants": [name], "dtype": "float32", "device": "cpu", "kv_heads": 8, "key_width": 64} | resolved
    made = Planted(path, "bench", settings, machine=MACHINE | {"cpu": cpu}, created=created)
    formula, short = ("a model folder", "") if is_folder else ("w = ...", name)
    made.folder.update(
        variants=[
            {"name": "sdpa", "formula": "", "short_name": ""},
            {"name": name, "formula": formula, "short_name": short},
        ]
    )
    for length in lengths:
        about = {"measure": measure, "length": length}
        made.add("speed", measure, 0.002, "s/token", variant="sdpa", low=0.0019, high=0.0022, n=num_repeats, **about)
        if ratio is None:
            made.add("speed", measure, None, "s/token", variant=name, status="failed", reason="disagrees", **about)
            continue
        middle, low, high = ratio
        made.add("speed", measure, 0.002 / middle, "s/token", variant=name, n=num_repeats, **about)
        spread = {"low": low, "high": high, "level": 0.8, "n": num_repeats}
        made.add("speed", f"{measure}_ratio", middle, "1", variant=name, **spread, **about)
        if state is not None:
            made.add("memory", "state", state, "B", variant=name, **about)
            made.add("memory", "cache", 1000.0, "B", variant=name, **about)
    made.add("speed", "crossing", 1500.0, "tokens", variant=name, measure=measure, shortest=1024, longest=CONTEXT)
    return made.write()


def verify(
    path: Path, model: Path | str, *, failed: tuple[str, ...] = (), soak: int = 8192, is_whole: bool = True, left: tuple[str, ...] = ()
) -> Path:  # fmt: skip
    """A verification in two precisions; `left` are checks that were never made."""
    settings = {"model": str(model), "soak": soak, "weights": "f00", "checks": []}
    subject = {"model": str(model), "specs": ["taylor:0..2"], "layers": 2, "soak": soak}
    made = Planted(
        path, "verify", settings, begun="2026-01-01", finished="2026-01-02" if is_whole else None, subject=subject
    )
    for stage in ("float32", "bfloat16"):
        for name in ("parallel", "token_by_token", *(SOAK if soak else ())):
            if name not in left:
                value = None if name in failed else 1e-6
                told = {"status": "failed", "reason": f"{name} differs"} if value is None else {}
                made.add("check", "relative_rms", value, "1", check=name, stage=stage, started="2026-01-01T10", **told)
    made.add(
        "check", "far", None, "1", check="chunked", stage="float32", status="excluded", reason="no layer", started="2026-01-01T11"
    )  # fmt: skip
    return made.write()


def plan(
    path: Path,
    points: dict[float, tuple[tuple[float, float] | None, tuple[float, float] | None]] | None = None,
    *,
    chosen: float = 0.25,
    context: int = CONTEXT,
    layers: Any = None,
    slots_plan: str | None = None,
    over_uniform: tuple[float, float] | None = None,
    **resolved: Any,
) -> Path:
    """A plan: share -> (rise over the exact model, gain over slots alone), each an interval or not measured."""
    points = points or {0.1: ((0.06, 0.1), (-0.05, -0.02)), 0.25: ((0.0, 0.03), (-0.04, -0.01))}
    settings = {"source": "models/original", "context": context, "cache_dtype": "bfloat16", "about": {"name": "small"}}
    made = Planted(path, "plan", settings | resolved)
    for share, (rise, gain) in points.items():
        about = {"method": "termwise", "share": share, "plan": f"p{share}", "is_chosen": share == chosen}
        slots = {"method": "slots", "share": share, "plan": slots_plan or f"s{share}", "is_chosen": False}
        made.add("plan", "state_share", share - 0.001, "share", **about)
        made.between("plan", "loss_rise", rise, baseline="exact", **about)
        made.between("plan", "loss_rise", (0.2, 0.4), baseline="exact", **slots)
        made.between("plan", "gain", gain, baseline="slots", **about)
        if over_uniform is not None:
            made.between("plan", "gain", over_uniform, baseline="uniform", **about)
        for text in range(3):
            made.add("loss", "held_out_nats", 3.0 + 0.1 * text + share, **about, role="reporting", text=text, n=2048)
    for text in range(3):
        subject = {"method": "exact", "share": 1.0, "plan": "e", "role": "reporting", "text": text}
        made.add("loss", "held_out_nats", 3.0 + 0.1 * text, n=2048, **subject)
    for layer in range(2):
        subject = {"layer": layer, "kv_head": 0, "plan": "p", "keeps": "mean", "variant": "taylor:0..2@mean+w64s4e64"}
        made.add("plan", "kept_bytes", 250_000.0, "B", whole=1_000_000, **subject)
    if layers is not None:
        (path / "plan.json").write_text(json.dumps({"schema": 1, "layers": layers}))
    return made.write()


def spec(kernel: str = "Polynomial", orders: tuple[int, ...] = (0, 1, 2), **changes: Any) -> dict[str, Any]:
    """A spec as run.json holds it."""
    own = {
        "orders": list(orders),
        "coefficients": "taylor",
        "center": changes.pop("center", "zero"),
        "allow_negative": False,
    }
    found = {"type": kernel} | (own if kernel == "Polynomial" else {"clamp": None})
    plain = {
        "normalizer": {"type": "RowSum"},
        "input_gate": False,
        "output_gate": None,
        "log_decay": False,
        "local": None,
    }
    return {"kernel": found} | plain | changes


def entry(name: str, **about: Any) -> dict[str, Any]:
    """A variant as run.json holds it."""
    short = "exp" if name == "softmax" else name
    return {
        "name": name,
        "formula": "w",
        "short_name": short,
        "equal_names": [],
        "parts_that_cancel": [],
        "layer": {},
    } | about


def study(
    path: Path,
    changes: dict[str, tuple[float, float] | None],
    *,
    states: dict[str, float] | None = None,
    context: int = 256,
    entries: list[dict[str, Any]] | None = None,
    seeds: tuple[int, ...] = (0, 1, 2),
    **resolved: Any,
) -> Path:
    """A study: variant -> the interval of its difference from softmax; None: too few seeds for one."""
    settings = {
        "variants": entries or [entry(name) for name in ("softmax", *changes)], "seeds": list(seeds), "context": context,
        "steps": 300, "preset": "tiny",
    }  # fmt: skip
    made = Planted(path, "study", settings | resolved)
    sizes = {"softmax": 1000.0} | dict.fromkeys(changes, 500.0) | (states or {})
    for name, size in sizes.items():
        for length, share in ((context // 4, 0.5), (context, 1.0)):
            made.add("memory", "state", share * size, "B", variant=name, length=length)
    for name in ("softmax", *changes):
        middle = sum(changes.get(name) or (0.0, 0.0)) / 2
        for seed in seeds:
            documents(made, name, 2.0 + middle + 0.001 * seed * (len(name) % 3), seed=seed)
    for name, ends in changes.items():
        about = {"variant": name, "baseline": "softmax"}
        if ends is None:
            made.add("score", "verdict", 0.1, reason="too few seeds", n=1, **about)
        else:
            made.between("score", "verdict", ends, reason="no difference found", n=3, **about)
    return made.write()


def rung(order: int | None, center: str | None, slots: str | None) -> dict[str, Any]:
    """The subject of a model of the ladder."""
    name = "drop" if order is None else f"taylor:0..{order}" + ("@mean" if center == "mean" else "")
    return {"variant": name + (f"+{slots}" if slots else ""), "order": order, "center": center, "slots": slots}


def inspect(path: Path, *, kept: dict[str, float] | None = None, is_encoder: bool = False, **resolved: Any) -> Path:
    """An inspection of two layers of two kv heads: a ladder around the mean, heads, a layer."""
    about = {"name": "small", "num_layers": 2, "num_kv_heads": 2, "head_dim": 16, "context": 8192, "has_loss": True}
    settings = {
        "model": "models/original",
        "about": about,
        "length": 512,
        "texts": 4,
        "window": 64,
        "reduced": "taylor:0..2@mean+w64s4",
    }
    made = Planted(path, "inspect", settings | resolved)
    metric = "hidden_change" if is_encoder else "loss"
    ladder = {None: 0.9, 0: 0.6, 2: 0.1, 4: 0.09}
    rungs = [(rung(order, None if order is None else "mean", "w64s4"), rise) for order, rise in ladder.items()]
    rungs += [(rung(order, "mean", None), 2 * rise + 1) for order, rise in ladder.items() if order is not None]
    for subject, rise in [({"variant": "exact"}, 0.0), *rungs]:
        for text in range(4):
            noise = 0.001 * (text % 2) * ((subject.get("order") or 0) % 3)
            made.add("loss", metric, 3.0 + rise + 0.2 * text + noise, **subject, text=text)
        made.add("loss", metric, 3.0 + rise + 0.3, n=4, **subject)
        if rise:
            ends = {"low": rise - 0.01, "high": rise + 0.01, "level": 0.95}
            unit = "relative change" if is_encoder else "nats/token"
            made.add("loss", "rise", rise, unit, baseline="exact", n=4, **ends, **subject)
    heads = {(0, 0): (0.2, 0.3), (0, 1): (-0.01, 0.01), (1, 0): (0.0, 0.1), (1, 1): None}
    for (layer, head), ends in heads.items():
        made.add("score", "score_mean", 0.1, "1", layer=layer, kv_head=head)
        made.between(
            "importance", "rise", ends, layer=layer, kv_head=head, reason=None if ends else "the budget was spent"
        )
    made.between("importance", "rise", (0.3, 0.4), layer=0)
    for name, size in (kept or {}).items():
        made.add("memory", "kept_bytes", size, "B", variant=name, length=CONTEXT, whole=1000)
    return made.write()
