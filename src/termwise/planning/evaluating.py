"""True losses of plans, text by text; each a record as soon as it is there, so that none is measured twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from scipy import stats

from termwise.analysis.options import kind_of
from termwise.analysis.replanned import head_nats, passed_through, replayed, scored, under_plan
from termwise.attention.spec import AttentionSpec
from termwise.planning.choosing import EXACT_MODEL, Candidate, Layers, Menu
from termwise.planning.measuring import Centers
from termwise.planning.opening import Opened
from termwise.results import Record, RunFolder, config_hash, now
from termwise.statistics.intervals import Interval, over_texts

LOSS = "held_out_nats"


@dataclass(frozen=True)
class Rise:
    """How much a plan loses over the exact model, or over another plan: the mean over texts with its interval."""

    value: float
    interval: Interval | None
    num_texts: int


@dataclass
class Evaluator:
    """Losses by plan and passage. `known`: (hash of a plan, passage) -> mean nats a token; filled from the records first."""

    opened: Opened
    centers: Centers
    folder: RunFolder
    say: Callable[[str], None]
    config_hash: str
    known: dict[tuple[str, int], float] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        for record in self.folder.records():
            if record.metric == LOSS and record.value is not None:
                self.known[record.subject["plan"], record.subject["text"]] = record.value

    @property
    def exact(self) -> Candidate:
        """The model as it is."""
        pretrained = self.opened.pretrained
        layer = (AttentionSpec(),) * pretrained.num_kv_heads
        return Candidate(EXACT_MODEL, 1.0, (layer,) * pretrained.num_layers, 0.0)

    def loss(self, plan: Candidate, text: int) -> float:
        """Mean nats a token on the last half of a passage."""
        key = plan_hash(plan.layers), text
        if key not in self.known:
            started, began = time.monotonic(), now()
            found = scored(self.opened.pretrained, self.opened.ids(text), under_plan(plan.layers, self.centers))
            seconds = time.monotonic() - started
            self.seconds.append(seconds)
            self.known[key] = float(found.double().mean())
            role = "planning" if text in self.opened.planning else "reporting"
            subject = {"method": plan.method, "share": plan.share, "text": text, "role": role, "plan": key[0]}
            how = f"last half of the text, {str(self.opened.pretrained.model.dtype).removeprefix('torch.')}"
            self.folder.append(
                Record(
                    run_id=self.folder.run["run_id"], kind="loss", subject=subject, metric=LOSS, value=self.known[key],
                    unit="nats/token", n=len(found), method=how, baseline=EXACT_MODEL, started=began,
                    seconds=seconds, config_hash=self.config_hash,
                )
            )  # fmt: skip
            self.say(
                f"{plan.method} {plan.share:.0%}, {role} text {text}: {self.known[key]:.4f} nats ({seconds:.0f} s)"
            )
        return self.known[key]

    def rise(self, plan: Candidate, over: Candidate, texts: Sequence[int]) -> Rise:
        """The plan's loss minus another's, paired over texts."""
        differences = [self.loss(plan, text) - self.loss(over, text) for text in texts]
        return Rise(sum(differences) / len(differences), over_texts(differences), len(differences))


@dataclass(frozen=True)
class Anchor:
    """One kv head with one option: what the proxies say, and the true rise with all else exact."""

    layer: int
    kv_head: int
    spec: AttentionSpec
    proxy: float
    change: float
    true: float


def chosen_anchors(menu: Menu, number: int) -> list[tuple[int, int, int]]:
    """(layer, kv head, option) at even ranks of the upper half of all proxies, where a true rise can be told from none."""
    flat = menu.rise.reshape(-1)
    order = flat.argsort()[::-1][: len(flat) // 2]
    places = [order[int((n + 0.5) * len(order) / number)] for n in range(number)]
    heads, options = menu.rise.shape[1:]
    return [(int(p) // (heads * options), int(p) // options % heads, int(p) % options) for p in places]


def measured_anchors(evaluator: Evaluator, menu: Menu, change: Sequence, number: int, text: int) -> list[Anchor]:
    """True single-head rises on one passage, replayed from the layer's exact input."""
    opened = evaluator.opened
    ids = opened.ids(text)
    passed = passed_through(opened.pretrained, ids)
    assert opened.pretrained.norm is not None
    exact = float(head_nats(opened.pretrained, opened.pretrained.norm(passed.last), ids).double().mean())
    found = []
    for layer, head, option in chosen_anchors(menu, number):
        layers = [list(one) for one in evaluator.exact.layers]
        layers[layer][head] = menu.options[option]
        nats = replayed(opened.pretrained, passed, ids, layer, under_plan(layers, evaluator.centers))
        true = float(nats.double().mean()) - exact
        proxy = float(menu.rise[layer, head, option])
        found.append(Anchor(layer, head, menu.options[option], proxy, float(change[layer][head][option]), true))
        evaluator.say(
            f"layer {layer} head {head} {menu.options[option].short_name}: proxy {proxy:.5f}, true {true:+.5f}"
        )
    return found


def proxies_beside(
    menu: Menu, rises: Mapping[tuple[int, int], float], window: int
) -> tuple[list[float], list[float], str]:
    """True rises of an inspection's kv heads, the proxies of the same heads, and the option these are of.

    The option is the window without sums and heavy slots that is nearest to the inspection's `window`.
    """
    plain = [
        n for n, spec in enumerate(menu.options) if kind_of(spec) == "slots" and spec.local and not spec.local.heavy
    ]
    near = min(plain, key=lambda n: abs(_window(menu.options[n]) - window))
    proxies = [float(menu.rise[layer, head, near]) for layer, head in rises]
    return list(rises.values()), proxies, menu.options[near].short_name


def _window(spec: AttentionSpec) -> int:
    return spec.local.window if spec.local else 0


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's; None below three pairs, or where one side does not vary."""
    if len(first) < 3 or len(set(first)) < 2 or len(set(second)) < 2:
        return None
    return float(stats.spearmanr(first, second).statistic)


def plan_hash(layers: Layers) -> str:
    """What tells plans apart: the spec of every kv head."""
    return config_hash([[spec.to_dict() for spec in layer] for layer in layers])
