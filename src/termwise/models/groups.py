"""Groups of kv heads: the heads of one layer that share a spec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from termwise.attention.refusals import check_fields
from termwise.attention.spec import AttentionSpec


@dataclass(frozen=True)
class HeadGroup:
    """The kv heads of one layer that run one spec, with the query heads that share them.

    >>> HeadGroup((0, 2), AttentionSpec()).query_heads(2)
    (0, 1, 4, 5)
    """

    kv_heads: tuple[int, ...]
    spec: AttentionSpec

    def query_heads(self, repeats: int) -> tuple[int, ...]:
        """The query heads of the group when `repeats` of them share a kv head."""
        return tuple(head * repeats + i for head in self.kv_heads for i in range(repeats))

    def to_dict(self) -> dict[str, Any]:
        return {"kv_heads": list(self.kv_heads), "spec": self.spec.to_dict()}


def layer_groups(entry: dict | Sequence[dict], num_kv_heads: int) -> tuple[HeadGroup, ...]:
    """The groups of a layer: one of all heads from the dict of a spec, else those of a list of `{"kv_heads", "spec"}`.

    Heads with equal specs are one group, groups stand in the order of their first heads. Errors: ValueError for heads
    that are missing, named twice or not there.
    """
    if isinstance(entry, dict):
        return (HeadGroup(tuple(range(num_kv_heads)), AttentionSpec.from_dict(entry)),)
    heads_of: dict[AttentionSpec, list[int]] = {}
    for group in entry:
        heads, spec = _read(group)
        heads_of.setdefault(spec, []).extend(heads)
    _check_cover([head for heads in heads_of.values() for head in heads], num_kv_heads)
    groups = [HeadGroup(tuple(sorted(heads)), spec) for spec, heads in heads_of.items()]
    return tuple(sorted(groups, key=lambda group: group.kv_heads))


def plain_layer(groups: Sequence[HeadGroup]) -> dict | list[dict]:
    """A layer as config.json holds it: the spec alone where all heads share one."""
    return groups[0].spec.to_dict() if len(groups) == 1 else [group.to_dict() for group in groups]


def _read(group: Any) -> tuple[list[int], AttentionSpec]:
    if not isinstance(group, dict) or group.keys() != {"kv_heads", "spec"}:
        raise ValueError(f'a group of heads is {group!r}; allowed is {{"kv_heads": [0, 2], "spec": {{...}}}}')
    heads, spec = group["kv_heads"], group["spec"]
    if (
        not isinstance(heads, (list, tuple))
        or not heads
        or any(isinstance(h, bool) or not isinstance(h, int) for h in heads)
    ):
        raise ValueError(f"kv_heads={heads!r}; allowed is a list of whole numbers, e.g. [0, 2]")
    if isinstance(spec, AttentionSpec):
        return list(heads), spec
    check_fields("spec", spec, list(AttentionSpec().to_dict()))
    return list(heads), AttentionSpec.from_dict(spec)


def _check_cover(heads: Sequence[int], num_kv_heads: int) -> None:
    wanted = range(num_kv_heads)
    odd = {
        "twice": sorted({h for h in heads if heads.count(h) > 1}),
        "that are not there": sorted(set(heads) - set(wanted)),
        "not at all": sorted(set(wanted) - set(heads)),
    }
    named = [f"{some} {how}" for how, some in odd.items() if some]
    if named:
        raise ValueError(
            f"groups name kv heads {', '.join(named)}; each of 0 to {num_kv_heads - 1} must stand in exactly one group"
        )
