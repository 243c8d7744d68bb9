"""The end of a plan: true losses on the reporting texts, records, and the plan's files."""

from __future__ import annotations

import time
from typing import Any

from termwise.data.sizes import counted
from termwise.models.naming import fingerprint, model_hash
from termwise.planning.choosing import Candidate
from termwise.planning.evaluating import Evaluator, plan_hash
from termwise.planning.job import Planning
from termwise.planning.plan_file import Plan, write_plan
from termwise.planning.recording import Recorder
from termwise.results import format_duration


def finish(
    one: Planning, evaluator: Evaluator, plans: list[Candidate], chosen: Candidate, predicted: dict[str, Any]
) -> None:
    """True losses of the front on the reporting texts, within the budget; records, and the plan's files."""
    recorder = Recorder(one.folder, one.config)
    texts = _report(one, evaluator, plans)
    one.folder.append_new(*recorder.heads(chosen, one.opened.pretrained.head_dim))
    one.folder.append_new(*recorder.sizes(chosen, evaluator))
    one.folder.append_new(*recorder.front(plans, chosen, evaluator, texts))
    known = {r.subject["plan"] for r in one.folder.records() if r.metric == "longer_rise"}
    if one.opened.longer is not None and plan_hash(chosen.layers) not in known:
        one.folder.append(*recorder.longer(chosen, evaluator, one.opened.longer))
    measured = recorder.measured(chosen, evaluator, texts)
    _write(one, evaluator, chosen, predicted, measured)


def _report(one: Planning, evaluator: Evaluator, plans: list[Candidate]) -> tuple[int, ...]:
    """The reporting texts that all plans were evaluated on: all, or as many (two at least) as the budget allows."""
    done: list[int] = []
    for text in one.opened.reporting:
        began = time.monotonic()
        for plan in (evaluator.exact, *plans):
            evaluator.loss(plan, text)
        done.append(text)
        spent = time.monotonic() - began
        missing = len(one.opened.reporting) - len(done)
        one.say(
            f"{len(done)} of {counted(len(one.opened.reporting), 'text')} reported, {format_duration(spent * missing)} left"
        )
        if missing and len(done) > 1 and one.left < spent:
            one.say(
                f"the budget is spent: {counted(missing, 'text is', 'texts are')} left; the same command with more --budget goes on"
            )
            break
    return tuple(done)


def _write(
    one: Planning, evaluator: Evaluator, chosen: Candidate, predicted: dict[str, Any], measured: dict[str, Any]
) -> None:
    pretrained, config = one.opened.pretrained, one.config
    about = {name: getattr(pretrained, name) for name in ("num_layers", "num_heads", "num_kv_heads", "head_dim")}
    model = {
        "folder": str(pretrained.folder),
        "family": pretrained.family,
        "config_hash": model_hash(pretrained.folder),
        "weights": fingerprint(pretrained.folder),
    }
    target = {name: value for name, value in (("max_state", config.max_state), ("max_loss", config.max_loss)) if value}
    centers = {
        (layer, head): evaluator.centers[layer, head, spec.kernel.centers]
        for layer, specs in enumerate(chosen.layers)
        for head, spec in enumerate(specs)
        if spec.kernel.centers > 1
    }
    plan = Plan(model | about, config.context, target, config.cache_dtype, chosen.layers, centers, predicted, measured)
    one.say(f"the plan: {write_plan(plan, one.folder.path)}")
