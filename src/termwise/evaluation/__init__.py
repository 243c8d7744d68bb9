"""Scores of a model: held-out loss and recall. A model that sees the future gets none."""

from __future__ import annotations

from termwise.evaluation.loss import DocumentLoss, LossResult, held_out_loss
from termwise.evaluation.recall import (
    RecallAtDistance,
    RecallResult,
    in_context_recall,
    recall_accuracy,
    recall_by_distance,
)
from termwise.evaluation.scoring import check_causal

__all__ = [
    "DocumentLoss",
    "LossResult",
    "RecallAtDistance",
    "RecallResult",
    "check_causal",
    "held_out_loss",
    "in_context_recall",
    "recall_accuracy",
    "recall_by_distance",
]
