"""The model: Llama's shape, any attention in every layer. Importing this loads transformers and registers the Auto classes."""

from __future__ import annotations

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from termwise.models.backbone import TermwiseModel
from termwise.models.build import build, load
from termwise.models.cache import TermwiseCache
from termwise.models.causal_lm import TermwiseForCausalLM
from termwise.models.config import TermwiseConfig
from termwise.models.presets import PRESETS, Preset, preset
from termwise.models.sizes import extra_parameters, num_parameters

AutoConfig.register("termwise", TermwiseConfig, exist_ok=True)
AutoModel.register(TermwiseConfig, TermwiseModel, exist_ok=True)
AutoModelForCausalLM.register(TermwiseConfig, TermwiseForCausalLM, exist_ok=True)

__all__ = [
    "PRESETS",
    "Preset",
    "TermwiseCache",
    "TermwiseConfig",
    "TermwiseForCausalLM",
    "TermwiseModel",
    "build",
    "extra_parameters",
    "load",
    "num_parameters",
    "preset",
]
