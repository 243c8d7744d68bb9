"""From true losses and plans to records: the front with its baselines, what every head keeps, anchors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from termwise.analysis.options import EXACT, SLOT_BYTES, kind_of, served_bytes
from termwise.analysis.pretrained import Pretrained
from termwise.attention.cost import cost
from termwise.planning.choosing import EXACT_MODEL, SLOTS, TERMWISE, UNIFORM, Candidate
from termwise.planning.config import PlanConfig
from termwise.planning.evaluating import Anchor, Evaluator, Rise, plan_hash, rank_correlation
from termwise.results import Record, RunFolder, config_hash

LEVEL = 0.95


class Recorder:
    """Makes the records of one plan."""

    def __init__(self, folder: RunFolder, config: PlanConfig) -> None:
        self._folder, self._config = folder, config
        self._hash = config_hash(config.model_dump(mode="json"))

    def anchors(self, anchors: Sequence[Anchor]) -> list[Record]:
        """True rises of single heads beside their proxies, and how alike they rank."""
        found = []
        for one in anchors:
            subject = {"layer": one.layer, "kv_head": one.kv_head, "variant": one.spec.short_name}
            subject |= {"proxy": one.proxy, "output_change": one.change}
            found.append(self._record("anchor_rise", subject, one.true, "nats/token", baseline=EXACT_MODEL, n=1))
        true = [one.true for one in anchors]
        for metric, values in (
            ("rank_of_proxy", [one.proxy for one in anchors]),
            ("rank_of_change", [one.change for one in anchors]),
        ):
            value = rank_correlation(values, true)
            reason = None if value is not None else "too few single heads, or all alike"
            method = "Spearman, against true rises of single heads"
            found.append(self._record(metric, {}, value, "1", reason=reason, n=len(anchors), method=method))
        return found

    def inspected(self, true: Sequence[float], proxies: Sequence[float], option: str) -> Record:
        """How alike the proxies of one option and the true rises of an inspection rank the kv heads."""
        value = rank_correlation(true, proxies)
        reason = None if value is not None else "the inspection has too few true rises of kv heads"
        how = "Spearman, against the inspection's true rises of single heads"
        subject = {"variant": option}
        return self._record("rank_of_inspection", subject, value, "1", reason=reason, n=len(true), method=how)

    def front(
        self, plans: Sequence[Candidate], chosen: Candidate, evaluator: Evaluator, texts: Sequence[int]
    ) -> Iterator[Record]:
        """Of every plan its bytes and its rise; of every termwise plan its difference from the others of equal bytes."""
        for plan in plans:
            subject = self._subject(plan, is_chosen=plan == chosen)
            yield self._record("state_share", subject, self._share(plan, evaluator, self._config.cache_dtype), "share")
            yield self._rise("loss_rise", subject, evaluator.rise(plan, evaluator.exact, texts), EXACT_MODEL)
            if plan.predicted is not None:
                planned = evaluator.rise(plan, evaluator.exact, evaluator.opened.planning[1:])
                yield self._record(
                    "proxy_rise", subject, plan.predicted, "nats/token", method="sum of single-head proxies"
                )
                yield self._rise("planning_rise", subject, planned, EXACT_MODEL)
        for plan in (plan for plan in plans if plan.method == TERMWISE):
            for other in plans:
                if other.share == plan.share and other.method in (SLOTS, UNIFORM):
                    subject = self._subject(plan, is_chosen=plan == chosen)
                    yield self._rise("gain", subject, evaluator.rise(plan, other, texts), other.method)

    def heads(self, chosen: Candidate, width: int) -> Iterator[Record]:
        """What every kv head of the chosen plan keeps, and its bytes beside those of its full cache."""
        sizes = (self._config.context, width, width, self._config.cache_dtype)
        common = {"plan": plan_hash(chosen.layers), "whole": served_bytes(EXACT, *sizes)}
        for layer, specs in enumerate(chosen.layers):
            for head, spec in enumerate(specs):
                keeps = {"variant": spec.short_name, "keeps": kind_of(spec)}
                subject = {"layer": layer, "kv_head": head} | keeps | common
                method = "at its most, at the context"
                yield self._record("kept_bytes", subject, served_bytes(spec, *sizes), "B", method=method)

    def sizes(self, chosen: Candidate, evaluator: Evaluator) -> Iterator[Record]:
        """The chosen plan's share of a cache in either precision, and the bytes of its states as this package runs them."""
        plan = {"plan": plan_hash(chosen.layers)}
        for dtype in SLOT_BYTES:
            share = self._share(chosen, evaluator, dtype)
            yield self._record("chosen_share", plan | {"cache_dtype": dtype}, share, "share")
        live = _live_bytes(chosen, evaluator.opened.pretrained, self._config.context)
        yield self._record("live_bytes", plan, live, "B", method="states of attend, float32, at their most")

    def longer(self, chosen: Candidate, evaluator: Evaluator, ids: Any) -> Iterator[Record]:
        """The rise of the chosen plan on one longer text."""
        from termwise.analysis.replanned import scored, under_plan

        exact = scored(evaluator.opened.pretrained, ids).double()
        nats = scored(evaluator.opened.pretrained, ids, under_plan(chosen.layers, evaluator.centers)).double()
        subject = self._subject(chosen, is_chosen=True) | {"length": ids.shape[1]}
        evaluator.say(
            f"{ids.shape[1]:,} tokens: {float(exact.mean()):.4f} nats exact, {float(nats.mean() - exact.mean()):+.4f} with the plan"
        )
        yield self._record(
            "longer_rise", subject, float((nats - exact).mean()), "nats/token", baseline=EXACT_MODEL, n=1
        )

    def measured(self, chosen: Candidate, evaluator: Evaluator, texts: Sequence[int]) -> dict[str, Any]:
        """What plan.json says was measured."""
        rise = evaluator.rise(chosen, evaluator.exact, texts)
        low, high = (rise.interval.low, rise.interval.high) if rise.interval else (None, None)
        told: dict[str, Any] = {
            "loss_rise": rise.value,
            "low": low,
            "high": high,
            "level": LEVEL,
            "texts": rise.num_texts,
        }
        told["length"] = self._config.text_length
        for dtype in SLOT_BYTES:
            told[f"share_{dtype}"] = self._share(chosen, evaluator, dtype)
        told["state_bytes"] = _live_bytes(chosen, evaluator.opened.pretrained, self._config.context)
        if self._config.max_loss is not None:
            told["target_holds"] = high is not None and high <= self._config.max_loss
        return told

    def _share(self, plan: Candidate, evaluator: Evaluator, dtype: Any) -> float:
        """Bytes of a plan over those of the full cache, both with slots in `dtype`."""
        width, context = evaluator.opened.pretrained.head_dim, self._config.context
        specs = [spec for layer in plan.layers for spec in layer]
        kept = sum(served_bytes(spec, context, width, width, dtype) for spec in specs)
        return kept / (len(specs) * served_bytes(EXACT, context, width, width, dtype))

    def _subject(self, plan: Candidate, *, is_chosen: bool) -> dict[str, Any]:
        return {"method": plan.method, "share": plan.share, "plan": plan_hash(plan.layers), "is_chosen": is_chosen}

    def _rise(self, metric: str, subject: dict[str, Any], rise: Rise, baseline: str) -> Record:
        span = rise.interval
        return self._record(
            metric, subject, rise.value, "nats/token", baseline=baseline, n=rise.num_texts,
            low=span.low if span else None, high=span.high if span else None, level=span.level if span else None,
            method=span.method if span else None,
        )  # fmt: skip

    def _record(self, metric: str, subject: dict[str, Any], value: float | None, unit: str, **others: Any) -> Record:
        status = "ok" if value is not None else "not_measured"
        common = {"run_id": self._folder.run["run_id"], "config_hash": self._hash, "status": status}
        return Record(kind="plan", subject=subject, metric=metric, value=value, unit=unit, **common, **others)


def _live_bytes(plan: Candidate, pretrained: Pretrained, context: int) -> int:
    """Bytes of the states of `attend`, fp32, at their most: more than a server's, since they can take queries back."""
    width = pretrained.head_dim
    specs = [spec for layer in plan.layers for spec in layer]
    return max(sum(cost(spec, width, width, length).state_bytes for spec in specs) for length in (context - 1, context))
