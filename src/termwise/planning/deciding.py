"""Which plans are evaluated, and which is taken: proxies propose, true losses on the planning texts decide."""

from __future__ import annotations

import dataclasses
from typing import Any

from termwise.planning.choosing import SLOTS, TERMWISE, Candidate, Menu, baseline, candidates, share_for_loss
from termwise.planning.evaluating import Evaluator
from termwise.planning.job import Planning

ROUNDS = 3  # corrections of a plan for --max-loss, at most
SAME_SHARE = 1e-3  # of the cache: a correction smaller than this is none
LEAST = 1e-9  # nats: below it a rise is none


def choose(one: Planning, evaluator: Evaluator, menu: Menu) -> tuple[list[Candidate], Candidate, dict[str, Any]]:
    """Plans of the front, the chosen one, and what was predicted of it."""
    sizes = one.opened.pretrained.num_layers, one.opened.pretrained.num_kv_heads
    plans: list[Candidate] = []
    for share in reversed(one.shares):
        plans += [*_best(one, evaluator, menu, share), baseline(one.config.context, share, *sizes)]
    if one.config.max_state is not None:
        chosen = next(plan for plan in plans if plan.method == TERMWISE and plan.share == one.config.max_state)
    else:
        chosen = _for_loss(one, evaluator, menu, [plan for plan in plans if plan.method == TERMWISE])
        if chosen not in plans:
            plans += [*_best(one, evaluator, menu, chosen.share), baseline(one.config.context, chosen.share, *sizes)]
    texts = one.opened.planning[1:]
    planned = evaluator.rise(chosen, evaluator.exact, texts).value
    return plans, chosen, {"proxy": chosen.predicted, "rise_on_planning_texts": planned}


def _best(one: Planning, evaluator: Evaluator, menu: Menu, share: float) -> tuple[Candidate, Candidate]:
    """The plan within a share that truly loses least on the planning texts, and the one of exact slots alone that does."""

    def loss(plan: Candidate) -> float:
        return sum(evaluator.loss(plan, text) for text in one.opened.planning[1:])

    slots = min(candidates(menu, SLOTS, share), key=loss)
    # slots alone are a plan too: where sums win nothing, they are taken
    own = [*candidates(menu, TERMWISE, share), dataclasses.replace(slots, method=TERMWISE)]
    return min(own, key=loss), slots


def _for_loss(one: Planning, evaluator: Evaluator, menu: Menu, front: list[Candidate]) -> Candidate:
    """The smallest plan whose true rise on the planning texts is within the target: the proxies' scale is fitted, and fitted again."""
    target = one.config.max_loss
    assert target is not None

    def rise(plan: Candidate) -> float:
        return evaluator.rise(plan, evaluator.exact, one.opened.planning[1:]).value

    tried = list(front)
    for _ in range(ROUNDS):
        near = min(tried, key=lambda plan: abs(rise(plan) - target))
        scale = max(rise(near), LEAST) / max(near.predicted or 0.0, LEAST)
        share = max(share_for_loss(menu, target, scale), float(menu.sizes.min() / menu.sizes[0]))
        if any(abs(share - plan.share) < SAME_SHARE for plan in tried):
            break
        tried.append(_best(one, evaluator, menu, share)[0])
    within = [plan for plan in tried if rise(plan) <= target]
    return min(within, key=lambda plan: plan.share) if within else min(tried, key=rise)
