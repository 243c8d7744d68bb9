"""TermwiseConfig: Llama's fields, and for every layer an attention spec and layer options."""

from __future__ import annotations

from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers.activations import ACT2FN
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from termwise.attention.catalogue import LayerOptions
from termwise.attention.refusals import nearest
from termwise.attention.spec import AttentionSpec
from termwise.data.sizes import counted
from termwise.models.families import to_termwise_fields
from termwise.models.groups import HeadGroup, layer_groups, plain_layer

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")

# Written by transformers itself beside the fields below.
_FROM_TRANSFORMERS = set(PreTrainedConfig().to_dict()) | {
    "model_type", "torch_dtype", "name_or_path", "_name_or_path", "_commit_hash", "attn_implementation",
    "_attn_implementation_autoset", "output_attentions", "num_labels", "rope_theta", "rope_scaling", "_output_attentions",
    "experts_implementation", "pruned_heads", "is_decoder", "cross_attention_hidden_size", "add_cross_attention",
    "tie_encoder_decoder",
}  # fmt: skip


class TermwiseConfig(PreTrainedConfig):
    """Configuration of a Llama-shaped model whose layers each hold a spec.

    `attention`: an `AttentionSpec` (or its dict) for all layers, or a list with one for each layer, where a layer may also
    be a list of groups `{"kv_heads": [0, 2], "spec": spec}` that name each kv head once. `layer_options`: one
    `LayerOptions`, or a list with one for each layer. `qkv_bias` gives q, k and v a bias without one on the output projection (Qwen2);
    `attention_bias` gives all four one. `rope_parameters` as transformers 5 stores it. Anything that cannot be is a
    ValueError naming the field, what is allowed and what to do.

    >>> config = TermwiseConfig(vocab_size=257, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
    ...                         num_attention_heads=4, attention=AttentionSpec())
    >>> config.specs[1].short_name, config.head_dim
    ('exp', 16)
    """

    model_type = "termwise"
    keys_to_ignore_at_inference = ["cache", "past_key_values"]  # noqa: RUF012

    def __init__(
        self,
        vocab_size: int = 32000,
        hidden_size: int = 4096,
        intermediate_size: int = 11008,
        num_hidden_layers: int = 32,
        num_attention_heads: int = 32,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        hidden_act: str = "silu",
        max_position_embeddings: int = 2048,
        initializer_range: float = 0.02,
        rms_norm_eps: float = 1e-6,
        use_cache: bool = True,
        tie_word_embeddings: bool = False,
        rope_parameters: dict[str, Any] | None = None,
        attention_bias: bool = False,
        qkv_bias: bool = False,
        mlp_bias: bool = False,
        pad_token_id: int | None = None,
        bos_token_id: int | None = None,
        eos_token_id: int | list[int] | None = None,
        attention: AttentionSpec | dict | list | None = None,
        layer_options: LayerOptions | dict | list | None = None,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_attention_heads if num_key_value_heads is None else num_key_value_heads
        self.head_dim: int = head_dim  # type: ignore[assignment]  # resolved in _check_sizes
        self.hidden_act = hidden_act
        self.max_position_embeddings = max_position_embeddings
        self.initializer_range = initializer_range
        self.rms_norm_eps = rms_norm_eps
        self.use_cache = use_cache
        self.tie_word_embeddings = tie_word_embeddings
        self.rope_parameters = dict(rope_parameters) if rope_parameters else None
        self.attention_bias = attention_bias
        self.qkv_bias = qkv_bias
        self.mlp_bias = mlp_bias
        self.pad_token_id = pad_token_id
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        _check_names(kwargs)
        _check_sizes(self)
        self.attention = _per_layer("attention", attention, AttentionSpec, self)
        self.layer_options = _per_layer("layer_options", layer_options, LayerOptions, self)
        try:
            super().__init__(**kwargs)
        except (ValueError, KeyError, StrictDataclassError) as error:
            raise ValueError(f"TermwiseConfig: {error.__cause__ or error}") from None
        _check_rotary(self)
        _check_blank_tokens(self.options)

    @property
    def groups(self) -> tuple[tuple[HeadGroup, ...], ...]:
        """For each layer its kv heads, grouped by spec."""
        layers = _spread(self.attention, self.num_hidden_layers)
        return tuple(layer_groups(entry, self.num_key_value_heads) for entry in layers)

    @property
    def specs(self) -> tuple[AttentionSpec, ...]:
        """The attention spec of each layer. Errors: ValueError where a layer's heads differ; `groups` has them then."""
        for i, groups in enumerate(self.groups):
            if len(groups) > 1:
                raise ValueError(
                    f"TermwiseConfig: layer {i} has {len(groups)} specs, one a group of heads; read config.groups"
                )
        return tuple(groups[0].spec for groups in self.groups)

    @property
    def options(self) -> tuple[LayerOptions, ...]:
        """The layer options of each layer."""
        return tuple(LayerOptions.from_dict(d) for d in _spread(self.layer_options, self.num_hidden_layers))

    @property
    def blank_tokens(self) -> int:
        """Learned tokens in front of every document; one number for the whole model."""
        return self.options[0].blank_tokens

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: Any, **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        found, rest = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        return to_termwise_fields(found), rest

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """The configuration a dict describes: ours, or that of a supported family (see `families.SUPPORTED`)."""
        own = {name: kwargs.pop(name) for name in tuple(kwargs) if name in FIELDS}
        return super().from_dict({**to_termwise_fields(config_dict), **own}, **kwargs)


FIELDS = tuple(sorted(TermwiseConfig.__init__.__annotations__.keys() - {"kwargs", "return"}))


def _spread(value: dict | list, num_layers: int) -> list:
    return value if isinstance(value, list) else [value] * num_layers


def _per_layer(field: str, value: Any, kind: Any, config: TermwiseConfig) -> dict | list:
    """The value as plain dicts, after a round through the class that validates it."""

    def plain(entry: Any, where: str) -> dict | list:
        if isinstance(entry, kind):
            return entry.to_dict()
        is_grouped = kind is AttentionSpec and isinstance(entry, (list, tuple)) and where != field
        if not isinstance(entry, dict) and not is_grouped:
            raise ValueError(
                f"TermwiseConfig: {where}={entry!r}; allowed are a {kind.__name__} or its dict, or a list with one a layer"
            )
        try:
            if is_grouped:
                return plain_layer(layer_groups(entry, config.num_key_value_heads))
            return kind.from_dict(entry).to_dict()
        except ValueError as error:
            raise ValueError(f"TermwiseConfig: {where}: {error}") from None

    if value is None:
        return kind().to_dict()
    if not isinstance(value, (list, tuple)):
        return plain(value, field)
    num_layers = config.num_hidden_layers
    if len(value) != num_layers:
        raise ValueError(
            f"TermwiseConfig: {field} lists {counted(len(value), 'layer')}, num_hidden_layers is {num_layers}; give one entry a layer, or one for all"
        )
    return [plain(entry, f"{field}[{i}]") for i, entry in enumerate(value)]


def _check_names(kwargs: dict[str, Any]) -> None:
    for name in kwargs:
        if name not in _FROM_TRANSFORMERS:
            raise ValueError(
                f"TermwiseConfig: unknown field {name!r}{nearest(name, FIELDS)}; allowed are {', '.join(FIELDS)}"
            )


def _check_sizes(config: TermwiseConfig) -> None:
    for name in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
    ):
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"TermwiseConfig: {name}={value!r}; allowed are whole numbers from 1")
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if heads % kv_heads:
        raise ValueError(
            f"TermwiseConfig: num_attention_heads={heads} is no multiple of num_key_value_heads={kv_heads}; query heads share kv heads evenly"
        )
    if config.head_dim is None:
        if config.hidden_size % heads:
            raise ValueError(
                f"TermwiseConfig: hidden_size={config.hidden_size} is no multiple of num_attention_heads={heads}; give head_dim"
            )
        config.head_dim = config.hidden_size // heads
    if isinstance(config.head_dim, bool) or not isinstance(config.head_dim, int) or config.head_dim < 1:
        raise ValueError(f"TermwiseConfig: head_dim={config.head_dim!r}; allowed are whole numbers from 1")
    if config.head_dim % 2:
        raise ValueError(
            f"TermwiseConfig: head_dim={config.head_dim} is odd, but rotary positions turn pairs; use an even one"
        )
    if config.hidden_act not in ACT2FN:
        raise ValueError(
            f"TermwiseConfig: hidden_act={config.hidden_act!r}{nearest(config.hidden_act, ACT2FN)}; allowed are {', '.join(sorted(ACT2FN))}"
        )
    for name in ("initializer_range", "rms_norm_eps"):
        if not isinstance(getattr(config, name), (int, float)) or not getattr(config, name) > 0:
            raise ValueError(f"TermwiseConfig: {name}={getattr(config, name)!r}; allowed is a positive number")


def _check_rotary(config: TermwiseConfig) -> None:
    rope = config.rope_parameters or {}
    kind = rope.get("rope_type", "default")
    if kind not in ROPE_TYPES or (kind != "default" and kind not in ROPE_INIT_FUNCTIONS):
        raise ValueError(
            f"TermwiseConfig: rope_type={kind!r}{nearest(kind, ROPE_TYPES)}; allowed are {', '.join(ROPE_TYPES)}"
        )
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(
            f"TermwiseConfig: partial_rotary_factor={rope['partial_rotary_factor']!r} is not supported; allowed is 1.0 (rotary over the whole head)"
        )


def _check_blank_tokens(options: tuple[LayerOptions, ...]) -> None:
    numbers = {o.blank_tokens for o in options}
    if len(numbers) > 1:
        raise ValueError(
            f"TermwiseConfig: layer_options ask for {sorted(numbers)} blank_tokens; they stand at the model's input, "
            "so every layer must name the same number"
        )
