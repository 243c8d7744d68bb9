"""The model under examination in one precision, the sequences it reads, and what float64 says of each.

Stages: the model in float64, where a mistake of any size shows above rounding; the same with scores a quarter as large, so that
no key is hidden behind a sink; then in float32 and bfloat16, where it will run.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from termwise.attention.forms import attend
from termwise.evaluation.judging import Outcome, allowed, judged
from termwise.evaluation.tracing import Errors, Parts, Traced, numbers, rows
from termwise.evaluation.vanishing import left_out, may_cancel
from termwise.models.groups import HeadGroup

LOGIT_COLUMNS = 2048
EVENER = 0.25  # what scores are multiplied by in the even stage
DTYPES = {"float64": torch.float64, "even": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
EXACT = "the parallel form in float64"


@dataclass(frozen=True)
class Sizes:
    """Lengths that pass every window, two folds and position 256, in rows that fold at different columns.

    `first_fold`: about where the first key leaves the exact buffer of the head with the most slots, which the long sequence
    passes. `batch_fold`: where it left those of a head of every trait, which batches pass: their cost grows with
    rows times length. `prefixes`: prompts of a batch, each continued by `more`.
    """

    first_fold: int
    batch_fold: int
    main: int
    prefixes: tuple[int, ...]
    more: int = 80

    @classmethod
    def of(cls, layers: Iterable[Sequence[HeadGroup]]) -> Sizes:
        """For the groups of heads of a model's layers.

        >>> from termwise.attention.spec import AttentionSpec
        >>> Sizes.of([[HeadGroup((0,), AttentionSpec())]]).main
        333
        """
        placed = [(place, group) for layer in layers for place, group in enumerate(layer)]
        shortest: dict[Any, int] = {}
        for place, group in sorted(placed, key=lambda one: reach(one[1].spec)):
            for trait in traits(place, group):
                shortest.setdefault(trait, reach(group.spec))
        slots = [reach(group.spec) for _, group in placed]
        first, batch = (max(lengths, default=1) + 127 for lengths in (slots, shortest.values()))
        return cls(first, batch, max(first + 141, 333), (batch - 3, batch - 40, 1, 70))

    @property
    def num_tokens(self) -> int:
        """Of text that are needed."""
        return self.main + sum(prefix + self.more for prefix in self.prefixes)


def reach(spec: Any) -> int:
    """Exact slots of a spec: the distance within which a key is certainly exact."""
    if spec.local is None:
        return 1
    return spec.local.window + spec.local.sinks + spec.local.heavy + (spec.local.evict_every or 0)


def traits(place: int, group: HeadGroup) -> tuple[Any, ...]:
    """What tells the code that a group of heads runs through from others': its kind; the first of its
    layer or a later one, one head or several, each with a tail, with slots alone, or with neither."""
    family = (group.spec.has_tail, group.spec.local is not None)
    return kind(group.spec), ("first", *family, place == 0), ("one head", *family, len(group.kv_heads) == 1)


def kind(spec: Any) -> Any:
    """What a spec does, however many slots and centers it has.

    >>> from termwise.attention.names import parse
    >>> kind(parse("taylor:0@mean32+w1000s4e64")) == kind(parse("taylor:0@mean8+w64s4e64"))
    True
    """
    kernel, local = spec.kernel, spec.local
    if getattr(kernel, "centers", 1) > 1:
        kernel = replace(kernel, centers=2)
    if local is not None:
        local = replace(local, **{name: min(getattr(local, name), 1) for name in ("window", "sinks", "heavy")})
    return replace(spec, kernel=kernel, local=local)


def has_choices(spec: Any) -> bool:
    """Whether which keys stay depends on weights, so that rounding may choose another one."""
    return spec.local is not None and spec.local.heavy > 0


class Exam:
    """One stage. `sequences`: token ids; 0 is the long one, then those of the batch, the last one forks off sequence 1.

    `exact(i)`: float64 rows of sequence i by the parallel form. The model is cast in place, in the order of the stages.
    """

    def __init__(self, model: Any, text: Tensor, stage: str, seed: int) -> None:
        self.model, self.stage, self.seed = model, stage, seed
        self.dtype = DTYPES[stage]
        self.sizes = Sizes.of(model.config.groups)
        self.sequences = _cut(text, self.sizes)
        vocabulary = model.config.vocab_size
        chance = torch.Generator().manual_seed(seed)
        self.garbage = torch.randint(vocabulary, (4096,), generator=chance)
        columns = torch.randperm(vocabulary, generator=chance)[:LOGIT_COLUMNS].sort().values
        self.traced = Traced(model, columns.to(model.device))
        self.single: Any = None  # the cache after single tokens over sequence 0, and their rows
        self.single_rows: Parts = []
        self._exact: dict[int, Parts] = {}
        self._plain: dict[int, Tensor] = {}
        self._left_out: dict[int, Tensor] = {}

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return self.model.config.num_hidden_layers

    def chance(self, name: str) -> random.Random:
        """Random choices of one check, whatever ran before it."""
        return random.Random(f"{self.seed} {name}")

    def batch(self, *indices: int) -> list[Tensor]:
        """Some sequences."""
        return [self.sequences[i] for i in indices]

    def new_cache(self) -> Any:
        """An empty cache that can be rolled back."""
        cache = self.model.model.new_cache()
        cache.activate_past_recording()
        return cache

    def prepare(self) -> None:
        """Cast the model to this stage, and compute what is exact."""
        self.model.to(self.dtype)
        self.model.to(torch.float64)
        can_cancel = self.dtype != torch.float64 and any(map(may_cancel, specs_of(self.model.config)))
        for i in range(len(self.sequences)):
            self.exact(i)
            if can_cancel:
                self._left_out[i] = left_out(self.model, self.ids(i))
        self.model.to(self.dtype)
        if self.dtype != torch.float64:
            for i in range(len(self.sequences)):
                self._plain[i] = self.errors(self.parallel(i), i).values

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """The stage's conditions, for as long as the block runs."""
        with evened(self.model) if self.stage == "even" else contextlib.nullcontext():
            yield

    def exact(self, index: int) -> Parts:
        """(N, width) of a sequence."""
        if index not in self._exact:
            self._exact[index] = self.parallel(index)
        return self._exact[index]

    def parallel(self, index: int) -> Parts:
        """The plain form: every score at once, no state."""
        with self.model.attending(forced("parallel")):
            return rows(self.traced(self.ids(index), use_cache=False), 0)

    def ids(self, index: int, start: int = 0, stop: int | None = None) -> Tensor:
        """(1, T) of a sequence."""
        return self.sequences[index][None, start:stop]

    def errors(self, found: Parts, index: int, start: int = 0, kept: slice = slice(None)) -> Errors:
        """Of rows of a sequence that follow one another from `start` on."""
        position = numbers(start, found)[kept]
        errors = Errors.of([part[kept] for part in found], self.exact(index), index, position)
        if index not in self._left_out:
            return errors
        values = errors.values.masked_fill(self._left_out[index][position], torch.nan)
        return Errors(values, errors.sequence, errors.position)

    def judge(self, errors: Errors, what: str) -> Outcome:
        """Whether rows of the form `what` agree."""
        has_plain = self.dtype != torch.float64
        found = judged(errors, self._plain_at if has_plain else None, self.dtype, (what, EXACT))
        if (
            found.status == "failed"
            and self.dtype == torch.bfloat16
            and any(map(has_choices, specs_of(self.model.config)))
        ):
            reason = (
                f"heavy slots go by weights that bfloat16 rounds, so that forms may keep other keys; {found.reason}"
            )
            return replace(found, status="not_measured", reason=reason)
        return found

    def tolerances(self, errors: Errors) -> Tensor:
        """(P,) what the mean over these rows may be."""
        usual = self._plain_at(errors) if self.dtype != torch.float64 else None
        return allowed(errors.values.shape[1], self.dtype, usual)[0]

    def _plain_at(self, errors: Errors) -> Tensor:
        return torch.stack([self._plain[int(i)][int(t)] for i, t in zip(errors.sequence, errors.position, strict=True)])


def specs_of(config: Any) -> list[Any]:
    """Every spec of a model, each once."""
    return list(dict.fromkeys(group.spec for layer in config.groups for group in layer))


def forced(form: str, chunk_size: int | None = None) -> Callable[[int], Callable[..., Any]]:
    """For `model.attending`: one form in every layer that has it."""

    def run(query: Tensor, key: Tensor, value: Tensor, spec: Any, **given: Any) -> Any:
        if form == "chunked" and not spec.is_constant_size:
            return attend(query, key, value, spec, **given)
        return attend(query, key, value, spec, **given, form=form, chunk_size=chunk_size)

    return lambda layer: run


@contextlib.contextmanager
def evened(model: Any) -> Iterator[None]:
    """Queries a quarter as large in every layer, so that every key has a say."""

    def smaller(module: Any, arguments: Any, out: Tensor) -> Tensor:
        return out * EVENER

    places = [getattr(layer.self_attn, "q_norm", layer.self_attn.q_proj) for layer in model.model.layers]
    handles = [place.register_forward_hook(smaller) for place in places]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _cut(text: Tensor, sizes: Sizes) -> list[Tensor]:
    """The sequences; a fork shares the prefix of sequence 1 and goes on as sequence 2 does."""
    lengths = [sizes.main, *(prefix + sizes.more for prefix in sizes.prefixes)]
    found = list(text[: sum(lengths)].split(lengths))
    fork = torch.cat([found[1][: sizes.prefixes[0]], found[2][sizes.prefixes[1] :]])
    return [*found, fork]


FORK = 5


def random_pieces(chance: random.Random, total: int, most: int) -> list[int]:
    """Sizes that add up to `total`.

    >>> sum(random_pieces(random.Random(0), 100, 30))
    100
    """
    sizes: list[int] = []
    while sum(sizes) < total:
        sizes.append(min(chance.randint(1, most), total - sum(sizes)))
    return sizes


Check = Callable[[Exam], Outcome]
__all__ = ["EXACT", "FORK", "Check", "Exam", "Sizes", "forced", "random_pieces", "reach", "specs_of"]
