"""The shapes a calibration is fitted on, and those it is judged on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from termwise.attention.cost import Work


@dataclass(frozen=True)
class Case:
    """One shape to be timed in both forms."""

    variant: str
    length: int
    heads: int
    kv_heads: int
    key_width: int
    value_width: int
    batch: int = 1
    hands_back: bool = True

    @property
    def work(self) -> Work:
        """The shape as the cost model sees it."""
        from termwise.attention.cost import Work

        return Work(
            self.length, self.length, self.batch * self.heads, self.batch * self.kv_heads, self.key_width,
            self.value_width, hands_back=self.hands_back,
        )  # fmt: skip


def fitted_cases() -> list[Case]:
    """Shapes the constants are fitted on: lengths on both sides of every crossing, few and many features, heads and groups."""
    cases = []
    for variant, width, longest in (
        ("elu1", 16, 4096), ("elu1", 64, 4096), ("taylor:0..2", 16, 4096), ("taylor:0..2", 32, 4096),
        ("taylor:0..2", 64, 4096), ("taylor:0..3!", 16, 2048), ("taylor:0..4", 16, 4096),
        ("taylor:0..2@mean", 32, 4096), ("taylor:0..2@mean+w64s4", 32, 4096),
    ):  # fmt: skip
        for length in (64, 256, 1024, 2048, 4096):
            for heads in (1, 8):
                if length <= longest and length * length * heads <= 2**24:
                    cases.append(Case(variant, length, heads, heads, width, width, hands_back=heads == 8))
    cases += [Case("taylor:0..2", length, 8, 2, 64, 64) for length in (256, 1024)]
    cases += [Case("taylor:0..2", length, 2, 2, 64, 64, batch=4, hands_back=False) for length in (256, 1024)]
    return cases


def held_out_cases() -> list[Case]:
    """Shapes the constants never saw: other lengths, widths, orders, groups, batches."""
    return [
        Case("taylor:0..2", 384, 4, 4, 64, 64), Case("taylor:0..2", 1536, 2, 2, 64, 64), Case("taylor:0..2", 3072, 1, 1, 64, 64),
        Case("taylor:0..2", 700, 6, 3, 48, 48), Case("taylor:0..2@mean", 900, 4, 4, 24, 32, hands_back=False),
        Case("taylor:0..2@mean+w64s4", 1280, 4, 4, 64, 64), Case("taylor:0..2@mean+w64s4", 512, 8, 2, 48, 48),
        Case("taylor:0..4", 768, 4, 4, 16, 16), Case("taylor:0..4", 3072, 1, 1, 16, 16, hands_back=False),
        Case("taylor:0..3!", 1500, 2, 2, 24, 24), Case("taylor:0..3!", 600, 3, 3, 32, 32, batch=2),
        Case("elu1", 320, 4, 4, 32, 32), Case("elu1", 1800, 4, 4, 64, 64), Case("elu1", 5000, 1, 1, 32, 32, hands_back=False),
        Case("power:2|rms-", 640, 8, 8, 32, 32), Case("power:2|rms-", 2500, 1, 1, 48, 48),
        Case("taylor:0..2|l2", 1100, 3, 3, 32, 48, batch=2), Case("elu1+decay", 1024, 4, 4, 32, 32),
        Case("taylor:0..2", 5000, 1, 1, 32, 32), Case("taylor:0..6", 1000, 2, 2, 8, 16),
    ]  # fmt: skip
