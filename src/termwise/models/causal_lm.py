"""The causal language model: Llama's shape, any attention in every layer.

Shapes: B batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from termwise.models.backbone import TermwiseModel, TermwisePreTrainedModel, boundaries
from termwise.models.cache import CACHE_FIELD, TermwiseCache, all_or_nothing
from termwise.models.config import TermwiseConfig
from termwise.models.generation import TermwiseGeneration


class TermwiseForCausalLM(TermwiseGeneration, TermwisePreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A causal language model whose layers each run the attention their spec says.

    Loads folders of Llama, Mistral, Qwen2, Qwen3 and SmolLM3 (`families.SUPPORTED`); trains with Trainer and PEFT;
    generate() decodes from states, of constant size for finite kernels.

    >>> config = TermwiseConfig(vocab_size=17, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    >>> TermwiseForCausalLM(config)(torch.tensor([[1, 2, 3]])).logits.shape
    torch.Size([1, 3, 17])
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: TermwiseConfig) -> None:
        super().__init__(config)
        self.model = TermwiseModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: TermwiseCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        cu_seqlens: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        past_key_values: TermwiseCache | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple:
        """Logits (B, T, V), and the loss when `labels` are given (they are shifted inside; -100 is not scored).

        `attention_mask` (B, T) or (B, past + T), padding anywhere; `cu_seqlens` (documents + 1,) packs documents along one
        row, and then no label is scored across a boundary. Positions count real tokens from each document's start and go
        on across cached calls, unless `position_ids` are given. `cache` (also `past_key_values`): a `TermwiseCache`;
        by default one is made outside training. `logits_to_keep`: the last so many, or the places in a tensor.
        """
        shift_labels = kwargs.pop("shift_labels", None)
        cache = cache if cache is not None else past_key_values
        cu_seqlens = boundaries(cu_seqlens, position_ids, attention_mask, cache, kwargs)
        loss = None
        with all_or_nothing(cache):
            out = self.model(
                input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, cache=cache, inputs_embeds=inputs_embeds,
                use_cache=use_cache, cu_seqlens=cu_seqlens, **kwargs,
            )  # fmt: skip
            logits = self.lm_head(_kept(out.last_hidden_state, logits_to_keep))
            if labels is not None or shift_labels is not None:
                loss = self.loss_function(
                    logits=logits,
                    labels=None if labels is None else _scored(labels, attention_mask, cu_seqlens),
                    vocab_size=self.config.vocab_size,
                    num_items_in_batch=num_items_in_batch,
                    shift_labels=shift_labels,
                )
        found = CausalLMOutputWithPast(
            loss=loss, logits=logits, hidden_states=out.hidden_states, **{CACHE_FIELD: getattr(out, CACHE_FIELD)}
        )
        return found if (self.config.return_dict if return_dict is None else return_dict) else found.to_tuple()


def _kept(hidden: Tensor, logits_to_keep: int | Tensor) -> Tensor:
    if isinstance(logits_to_keep, int):
        return hidden[:, -logits_to_keep:] if logits_to_keep else hidden
    if logits_to_keep.dtype == torch.bool:
        return hidden[logits_to_keep]
    if logits_to_keep.dim() == 1:
        return hidden[:, logits_to_keep]
    return hidden.take_along_dim(logits_to_keep[..., None], dim=1)


def _scored(labels: Tensor, attention_mask: Tensor | None, cu_seqlens: Tensor | None) -> Tensor:
    """Labels without those that no earlier token of the same document predicts, and without padding."""
    if cu_seqlens is not None:
        labels = labels.index_fill(1, cu_seqlens[:-1].to(labels.device).long(), -100)
    if attention_mask is not None:
        is_real = attention_mask[:, -labels.shape[1] :].to(labels.device) != 0
        has_previous = torch.cat([is_real[:, :1], is_real[:, :-1]], dim=1)
        labels = labels.masked_fill(~(is_real & has_previous), -100)
    return labels
