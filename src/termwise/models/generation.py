"""generate() over states: which cache it carries, and prompts padded on either side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from termwise.models.cache import CACHE_FIELD, TermwiseCache, check_cache


class TermwiseGeneration:
    """What stands in front of transformers' GenerationMixin: its generate() with a `TermwiseCache`.

    Greedy, sampling, beams, chunked prefill, prompt lookup and an assistant model work.
    """

    _is_stateful = False

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; prompts may be padded on the left or on the right.

        A second call continues from a cache: it takes the whole sequence so far and the new tokens, as in transformers.
        """
        ids = inputs if inputs is not None else kwargs.get("input_ids")
        mask = kwargs.get("attention_mask")
        if ids is None or mask is None or mask.dim() != 2 or mask.shape != ids.shape or bool((mask[:, -1] != 0).all()):
            return super().generate(inputs, *args, **kwargs)  # type: ignore[misc]
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        past = cache.get_seq_length() if isinstance(cache, TermwiseCache) else 0
        order = _padding_first(mask, past)
        kwargs["attention_mask"] = mask.gather(1, order)
        moved = ids.gather(1, order)
        if inputs is not None:
            inputs = moved
        else:
            kwargs["input_ids"] = moved
        out = super().generate(inputs, *args, **kwargs)  # type: ignore[misc]
        sequences = out if isinstance(out, Tensor) else out.sequences
        sequences[:, : ids.shape[1]] = ids.repeat_interleave(sequences.shape[0] // ids.shape[0], dim=0)
        return out

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        given = next(
            (model_kwargs[name] for name in ("cache", "past_key_values") if model_kwargs.get(name) is not None), None
        )
        if generation_config.cache_implementation not in (None, "dynamic", "dynamic_full"):
            raise ValueError(
                f"cache_implementation={generation_config.cache_implementation!r} is not supported: a termwise model keeps "
                "states, of constant size for finite kernels; leave it None"
            )
        if given is None and generation_config.use_cache is not False:
            cache = self.model.new_cache()  # type: ignore[attr-defined]
            if getattr(generation_config, "is_assistant", False):
                cache.activate_past_recording()
            model_kwargs[CACHE_FIELD] = cache
        elif given is not None:
            check_cache(given)._is_user_defined = True  # type: ignore[attr-defined]

    def _prepare_position_ids_for_generation(self, inputs_tensor: Tensor, model_kwargs: dict[str, Any]) -> None:
        """None: the model counts real tokens itself, across calls and whatever the padding."""
        return None


def _padding_first(mask: Tensor, start: int) -> Tensor:
    """Per row, an order of columns that moves padding to the front of the columns from `start` on."""
    inner = torch.argsort(mask[:, start:].to(torch.int8), dim=1, stable=True) + start
    front = torch.arange(start, device=mask.device).expand(mask.shape[0], -1)
    return torch.cat([front, inner], dim=1)
