"""Every tolerance of the contract suite, each with its reason. Nothing is laxer anywhere else, and nothing is laxer in CI."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """Largest relative root mean square error; an error below `absolute` is rounding beside sums of order one."""

    relative: float
    reason: str
    absolute: float = 0.0


TABLE = {
    "fp64": Tolerance(1e-10, "the promise for float64"),
    "fp64 gradient": Tolerance(
        1e-10,
        "the promise for float64; gradients that cancel, wholly or up to a norm's eps, are rounding",
        absolute=1e-12,
    ),
    "fp32": Tolerance(1e-5, "the promise for float32: scores within +-10 of their mean, mean within +-25"),
    "fp32 gradient": Tolerance(
        1e-5,
        "the promise for float32; a gradient that is zero by the algebra is rounding beside summands of order one",
        absolute=5e-7,
    ),
    "fp32 cancelling gradient": Tolerance(
        1e-5,
        "a gradient whose summands, of order ten, cancel up to a norm's eps: their rounding stays, 2e-7 of them",
        absolute=2e-6,
    ),
    "fp32 far": Tolerance(
        1e-4, "the promise for four orders at key width 16 and a mean of 25: raw moments lose eps (2|m|)^P/P!"
    ),
    "16k": Tolerance(
        1e-6,
        "16k tokens folded in chunks of 64 at a spread of at most 1: 3e-7 by the table, three times that to be safe",
    ),
    "decay": Tolerance(1e-5, "the promise for decays of 0, -1e-6, -5, -50 and -1e4 mixed in one chunk, in float32"),
    "series": Tolerance(1e-12, "the promise for the 80-term series on [-60, 60]"),
    "outside": Tolerance(1e-9, "another program's float64 result, with its own order of summation"),
    "rounded": Tolerance(1.2e-7, "a float64 result rounded to float32 once"),
    "sharp": Tolerance(
        1e-4,
        "float32 scores in the hundreds: eps times the score, 6e-8 * 300, is the error of an exponent",
        absolute=1e-6,
    ),
    "eps": Tolerance(
        1e-7, "a factor that cancels but for an eps of 1e-12 in RMS or LayerNorm, beside squares of 1e-4 and more"
    ),
    "two digits": Tolerance(4e-2, "a figure printed with two digits"),
    "truncated": Tolerance(
        1e-7,
        "14 Taylor orders for scores below 3: 3^15 e^3 / 15! is 2e-4 at the very most, 1e-8 at the usual score of 1",
    ),
}

LOW_PRECISION_FACTOR = (
    2.0  # bfloat16 and float16: at most this times the error of the plain low-precision parallel form
)
LEFT_OUT_MASS = 1e-2  # rows whose divisor is below this share of what was summed are left out in float32, and counted
# Of gradients where weights of both signs share a row sum: they divide by |Z| twice, and eps 6e-8 * 2 / 1e-2 is 1.2e-5 already.
LEFT_OUT_MASS_OF_FORCED_GRADIENTS = 5e-2
LEFT_OUT_SHARE = 0.05  # of all rows at most: the largest is 0.045 (unit!)
LEFT_OUT_SHARE_OF_FORCED_GRADIENTS = 0.15  # the largest is 0.136 (unit!)
