"""The layers between token ids and hidden states, shared by every model of the family.

Shapes: B batch, T tokens, D hidden width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import PreTrainedModel

from termwise.attention.refusals import check_size, nearest
from termwise.attention.rows import RowCounts
from termwise.models.cache import CACHE_FIELD, TermwiseCache, all_or_nothing, check_cache
from termwise.models.config import TermwiseConfig
from termwise.models.initial import generator_for, initial_value
from termwise.models.layers import Attention, DecoderLayer
from termwise.models.layout import Layout, arrange, boundaries_from_positions
from termwise.models.rotary import Rotary

# Handed over by transformers' own tools; they change nothing here.
_WITHOUT_EFFECT = ("token_type_ids", "cache_position", "cu_seq_lens_k", "max_length_q", "max_length_k")


class TermwisePreTrainedModel(PreTrainedModel):
    """What all models share: configuration, starting weights, loading (safetensors only), row counts."""

    config_class = TermwiseConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["DecoderLayer"]  # noqa: RUF012
    _skip_keys_device_placement = ["cache", "past_key_values"]  # noqa: RUF012
    _supports_sdpa = True

    def __init__(self, config: TermwiseConfig) -> None:
        super().__init__(config)
        # Drawn before any module is made: torch's own layers draw as well, more of them in a deeper model.
        self._initial_seed = int(torch.randint(2**62, (), device="cpu"))
        self._initial_names: dict[int, str] = {}

    def _init_weights(self, module: nn.Module) -> None:
        """Each parameter from a generator of its own name, under one seed drawn from torch's global generator."""
        for leaf, parameter in module.named_parameters(recurse=False):
            if getattr(parameter, "_is_hf_initialized", False):
                continue
            if id(module) not in self._initial_names:
                self._initial_names = {id(m): name for name, m in self.named_modules()}
            generator = generator_for(self._initial_seed, f"{self._initial_names[id(module)]}.{leaf}")
            parameter.data.copy_(initial_value(module, leaf, parameter, self.config.initializer_range, generator))

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, from safetensors files only: a pickle is never opened, remote code never run."""
        if kwargs.setdefault("use_safetensors", True) is not True:
            raise ValueError(
                "use_safetensors=False is refused: .bin and .pt files are pickles; save the model as safetensors first"
            )
        if kwargs.pop("trust_remote_code", False):
            raise ValueError("trust_remote_code=True is refused: code from a model folder is never run")
        return super().from_pretrained(*args, **kwargs)

    @contextlib.contextmanager
    def count_rows(self) -> Iterator[dict[int, RowCounts]]:
        """Count rows and bad row sums in every layer while the block runs: {layer: counts per head}.

        Costs the speed of the fused form; meant for evaluation.
        """
        attentions = [m for m in self.modules() if isinstance(m, Attention)]
        counts = {a.layer_idx: RowCounts() for a in attentions}
        try:
            for a in attentions:
                a.row_counts = counts[a.layer_idx]
            yield counts
        finally:
            for a in attentions:
                a.row_counts = None

    @contextlib.contextmanager
    def attending(self, by: Callable[[int], Callable[..., Any]]) -> Iterator[None]:
        """Every attention of layer i goes through `by(i)`, a function called as `attend` is, while the block runs.

        Forces a form (`lambda layer: partial(attend, form="parallel")`) or looks on; meant for evaluation.
        """
        attentions = [m for m in self.modules() if isinstance(m, Attention)]
        try:
            for a in attentions:
                a.attend_by = by(a.layer_idx)
            yield
        finally:
            for a in attentions:
                a.attend_by = None


class TermwiseModel(TermwisePreTrainedModel):
    """Embeddings, layers and the last norm."""

    def __init__(self, config: TermwiseConfig) -> None:
        super().__init__(config)
        # No padding_idx: where pad is eos, true ends must learn; padding itself never reaches an output.
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.num_blank = config.blank_tokens
        if self.num_blank:
            self.blank_tokens = nn.Parameter(torch.empty(self.num_blank, config.hidden_size))
        self.layers = nn.ModuleList(
            DecoderLayer(config, i, groups, options)
            for i, (groups, options) in enumerate(zip(config.groups, config.options, strict=True))
        )
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary = Rotary(config)
        self.has_rotary = any(o.rotary for o in config.options)
        self.no_state = _why_no_state(config)
        self.gradient_checkpointing = False
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: TermwiseCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cu_seqlens: Tensor | None = None,
        past_key_values: TermwiseCache | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast | tuple:
        """Hidden states (B, T, D); arguments as in `causal_lm.TermwiseForCausalLM`."""
        cache = cache if cache is not None else past_key_values
        cu_seqlens = boundaries(cu_seqlens, position_ids, attention_mask, cache, kwargs)
        _check_rest(kwargs, self.config)
        cache = self._cache_for(cache, use_cache, packed=cu_seqlens is not None)
        embeds = self._embeds(input_ids, inputs_embeds)
        is_real = _real_columns(attention_mask, embeds, 0 if cache is None else cache.get_seq_length())
        hidden, layout = self._arrange(embeds, is_real, position_ids, cu_seqlens, cache)
        rotation = self.rotary(layout, hidden.dtype) if self.has_rotary else None
        keep_all = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        seen = [layout.restore(hidden)] if keep_all else []
        with all_or_nothing(cache):
            for i, layer in enumerate(self.layers):
                hidden = layer(hidden, layout, rotation, cache=None if cache is None else cache.layers[i])
                if keep_all and i + 1 < len(self.layers):
                    seen.append(layout.restore(hidden))
            hidden = layout.restore(self.norm(hidden))
            if cache is not None:
                _advance(cache, layout, is_real, embeds.shape[1])
        out = BaseModelOutputWithPast(
            last_hidden_state=hidden,
            hidden_states=(*seen, hidden) if keep_all else None,
            **{CACHE_FIELD: cache},  # type: ignore[arg-type]
        )
        return out if return_dict is not False else out.to_tuple()

    def _cache_for(self, cache: Any, use_cache: bool | None, *, packed: bool) -> TermwiseCache | None:
        is_checkpointing = self.gradient_checkpointing and self.training and torch.is_grad_enabled()
        if cache is not None:
            check_cache(cache)
        if cache is not None and is_checkpointing:
            raise ValueError(
                "a cache and gradient checkpointing exclude each other; leave the cache out, or call "
                "gradient_checkpointing_disable()"
            )
        if cache is not None and use_cache is False:
            raise ValueError("use_cache=False with a cache; leave one of them out")
        if use_cache is None:
            is_wanted = self.config.use_cache and not self.training and not packed and self.no_state is None
            use_cache = cache is not None or is_wanted
        return self.new_cache() if cache is None and use_cache and not is_checkpointing else cache

    def new_cache(self) -> TermwiseCache:
        """An empty cache for this model. Errors: ValueError where a layer's state is too large to hold."""
        if self.no_state is not None:
            raise ValueError(
                f"{self.no_state}; a model needs use_cache=False then, which reads the whole text at every step"
            )
        return TermwiseCache(len(self.layers))

    def _embeds(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        embeds = self.embed_tokens(input_ids) if input_ids is not None else inputs_embeds
        assert embeds is not None
        if embeds.dim() != 3 or embeds.shape[1] == 0:
            raise ValueError(
                f"embeddings of shape {tuple(embeds.shape)}; expected (batch, tokens, width) with at least one token"
            )
        return embeds

    def _arrange(
        self,
        embeds: Tensor,
        is_real: Tensor | None,
        position_ids: Tensor | None,
        cu_seqlens: Tensor | None,
        cache: TermwiseCache | None,
    ) -> tuple[Tensor, Layout]:
        batch, length = embeds.shape[:2]
        if position_ids is not None and tuple(position_ids.shape) not in ((1, length), (batch, length)):
            raise ValueError(
                f"position_ids has shape {tuple(position_ids.shape)}; expected ({batch}, {length}) or (1, {length})"
            )
        if cache is not None and not cache.is_empty:
            _check_batch(cache, embeds, cu_seqlens)
            past = cache.get_seq_length() + self.num_blank
            self.rotary.check_continues(past, past + length)
            position_ids = position_ids if position_ids is None else position_ids + self.num_blank
            return arrange(embeds, is_real=is_real, position_ids=position_ids, offset=cache.positions)
        return arrange(
            embeds,
            is_real=is_real,
            cu_seqlens=cu_seqlens,
            position_ids=position_ids,
            blank=self.blank_tokens if self.num_blank else None,
        )


def boundaries(
    cu_seqlens: Tensor | None,
    position_ids: Tensor | None,
    attention_mask: Tensor | None,
    cache: Any,
    rest: dict[str, Any],
) -> Tensor | None:
    """Boundaries of packed documents, on the CPU: those given, else transformers' own argument, else where positions restart."""
    flash = rest.pop("cu_seq_lens_q", None)
    cu_seqlens = flash if cu_seqlens is None else cu_seqlens
    is_fresh = cache is None or (isinstance(cache, TermwiseCache) and cache.is_empty)
    if cu_seqlens is None and position_ids is not None and attention_mask is None and is_fresh:
        cu_seqlens = boundaries_from_positions(position_ids)
    return None if cu_seqlens is None else cu_seqlens.cpu()


def _why_no_state(config: TermwiseConfig) -> str | None:
    """Why one sequence's state cannot be held, or None."""
    for group in dict.fromkeys(group for layer in config.groups for group in layer):
        try:
            check_size(group.spec, config.head_dim, config.head_dim, num_states=len(group.kv_heads))
        except ValueError as error:
            return str(error)
    return None


def _check_rest(kwargs: dict[str, Any], config: Any) -> None:
    if kwargs.pop("output_attentions", None) or config.output_attentions:
        raise ValueError(
            "output_attentions=True is not supported: the faster forms never make attention weights; leave it False"
        )
    for name in kwargs:
        if name not in _WITHOUT_EFFECT:
            known = (*TermwiseModel.forward.__annotations__, "labels", "logits_to_keep", "num_items_in_batch")
            raise ValueError(f"forward: unknown argument {name!r}{nearest(name, known)}")


def _real_columns(attention_mask: Tensor | None, embeds: Tensor, past: int) -> Tensor | None:
    """(B, T) True for real tokens of this call, or None when all are."""
    if attention_mask is None:
        return None
    batch, length = embeds.shape[:2]
    if (
        attention_mask.dim() != 2
        or attention_mask.shape[0] != batch
        or attention_mask.shape[1] not in (length, past + length)
    ):
        allowed = f"({batch}, {length})" + (f" or ({batch}, {past + length}), earlier tokens included" if past else "")
        raise ValueError(f"attention_mask has shape {tuple(attention_mask.shape)}; expected {allowed}")
    is_real = attention_mask[:, -length:].to(embeds.device) != 0
    return None if bool(is_real.all()) else is_real


def _check_batch(cache: TermwiseCache, embeds: Tensor, cu_seqlens: Tensor | None) -> None:
    assert cache.positions is not None
    if cu_seqlens is not None:
        raise ValueError(
            "cu_seqlens with a filled cache is not supported: continue the documents as a batch, one row each"
        )
    if len(cache.positions) != embeds.shape[0]:
        raise ValueError(
            f"the cache holds {len(cache.positions)} sequences, the call has {embeds.shape[0]}; "
            "cache.batch_repeat_interleave(n) repeats each n times"
        )


def _advance(cache: TermwiseCache, layout: Layout, is_real: Tensor | None, num_columns: int) -> None:
    new = layout.num_new
    num_sound = num_columns
    if layout.cu_seqlens is not None or layout.is_unpacked:
        num_columns, num_sound = int(new.max()) - layout.num_blank, int(new.min()) - layout.num_blank
    elif is_real is not None:
        num_sound = int(is_real.all(dim=0).flip(0).to(torch.int64).cumprod(0).sum())
    cache.advance(new if cache.positions is None else cache.positions + new, num_columns, num_sound)
