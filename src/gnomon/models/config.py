"""`GnomonConfig`: one flat, typed, strict configuration for every model of the library."""

import difflib
import functools
import math
from dataclasses import fields as dataclass_fields
from typing import Any

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig

from gnomon.models.sizes import DEFAULTS, TOKEN_FIELDS, check_tokens, resolve
from gnomon.nn.feedforward import ACTIVATIONS
from gnomon.nn.functional import SCORES
from gnomon.nn.initialization import INITIALIZATIONS
from gnomon.nn.norms import NORMS

CHOICES: dict[str, tuple[str, ...]] = {
    "projection": ("linear", "pattention"),
    "feed_forward": ("mlp", "glu", "pattention"),
    "score": tuple(SCORES),
    "norm_placement": ("pre",),
    "norm": tuple(NORMS),
    "final_norm": tuple(NORMS),
    "initialization": tuple(INITIALIZATIONS),
    "positions": ("rotary", "none"),
    "hidden_act": tuple(ACTIVATIONS),
}
"""The values of every field that is a choice."""

TRANSFORMERS_KEYS = frozenset(
    {
        "_attn_implementation",
        "_commit_hash",
        "_name_or_path",
        "attn_implementation",
        "auto_map",
        "experts_implementation",
        "model_type",
        "name_or_path",
        "num_labels",
        "output_attentions",
        "quantization_config",
        "torch_dtype",
    }
)
"""Keys that are no field of ours and that transformers itself writes into or passes to a configuration."""

POSITIVE = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "max_position_embeddings",
)
PROBABILITIES = ("hidden_dropout", "attention_dropout")
UNUSED = {"is_encoder_decoder": False, "chunk_size_feed_forward": 0}
"""Fields that every transformers configuration has and that no model here reads, with their defaults."""

_D = DEFAULTS


def plain_errors(cls: type) -> type:
    """Let a strict dataclass raise the ValueError or TypeError of its checks, which it hides in errors of its own.

    Args:
        cls: the strict dataclass.

    Returns:
        The same class.
    """
    construct = cls.__init__

    @functools.wraps(construct)
    def construct_plainly(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            construct(self, *args, **kwargs)
        except StrictDataclassError as error:
            raise (error.__cause__ or error) from None

    cls.__init__ = construct_plainly  # type: ignore[misc]
    return cls


@plain_errors
@strict
class GnomonConfig(PreTrainedConfig):
    """Configuration of every gnomon model; it always describes the model as it stands, grown or not.

    Unset fields follow from others: see `gnomon.models.sizes.resolve`. Counts are numbers of parameter tokens.

    Args:
        vocab_size: rows of the embedding table.
        hidden_size: d, the width of the residual stream.
        num_hidden_layers: L.
        num_attention_heads: of the queries.
        num_key_value_heads: of keys and values; `num_attention_heads` if unset.
        head_dim: width of a head; hidden_size / num_attention_heads if unset.
        intermediate_size: hidden width of a linear feed-forward layer; 4 d if unset.
        hidden_act: activation of a linear feed-forward layer.
        projection: `pattention` or `linear`, of query, key, value and output.
        feed_forward: `pattention`, `mlp` or `glu`; follows projection if unset.
        num_attention_tokens: of query, key and value: a count, {query, key, value}, or a list of these, one a layer.
        num_output_tokens: of the output projection: a count or a list; d if unset.
        num_feed_forward_tokens: of the feed-forward layer: a count or a list; 4 d if unset.
        score: the score function of Pattention.
        learn_score_scale: make every tau a parameter.
        norm_placement: where the norms stand in a block.
        norm: of the blocks; `layer_plain` with pattention, else `layer`, if unset.
        final_norm: after the last block; `layer` where the blocks have `layer_plain`, else as the blocks, if unset.
        norm_eps: added to the variance.
        initialization: rule of `gnomon.nn.initialization`; follows projection if unset.
        initializer_range: the standard deviation that the rule starts from.
        positions: `rotary` or `none`.
        rope_parameters: rope_theta and partial_rotary_factor (the share of a head that turns).
        max_position_embeddings: longest sequence the model is meant for.
        use_bias: biases in linear layers.
        tie_word_embeddings: the head shares the embedding table.
        hidden_dropout: of embeddings and sublayer outputs.
        attention_dropout: of the attention weights.
        use_cache: keep keys and values while generating.
        is_decoder: causal or not; a head class sets it when unset and refuses the opposite.
        bos_token_id: id that begins a text.
        eos_token_id: id that ends a text.
        pad_token_id: id of padding.

    Raises:
        ValueError: for an unknown key (with the nearest known one), a value outside its choices, sizes that do not
            fit together, or token counts of the wrong form.
        TypeError: for a value of the wrong type.

    >>> GnomonConfig(hidden_size=64, num_attention_heads=4).num_feed_forward_tokens
    256
    """

    model_type = "gnomon"
    keys_to_ignore_at_inference = ["cache"]

    vocab_size: int = _D["vocab_size"]
    hidden_size: int = _D["hidden_size"]
    num_hidden_layers: int = _D["num_hidden_layers"]
    num_attention_heads: int = _D["num_attention_heads"]
    num_key_value_heads: int | None = _D["num_key_value_heads"]
    head_dim: int | None = _D["head_dim"]
    intermediate_size: int | None = _D["intermediate_size"]
    hidden_act: str = _D["hidden_act"]
    projection: str = _D["projection"]
    feed_forward: str | None = _D["feed_forward"]
    num_attention_tokens: int | dict | list | None = _D["num_attention_tokens"]
    num_output_tokens: int | list | None = _D["num_output_tokens"]
    num_feed_forward_tokens: int | list | None = _D["num_feed_forward_tokens"]
    score: str = _D["score"]
    learn_score_scale: bool = _D["learn_score_scale"]
    norm_placement: str = _D["norm_placement"]
    norm: str | None = _D["norm"]
    final_norm: str | None = _D["final_norm"]
    norm_eps: float = _D["norm_eps"]
    initialization: str | None = _D["initialization"]
    initializer_range: float = _D["initializer_range"]
    positions: str = _D["positions"]
    rope_parameters: dict | None = _D["rope_parameters"]
    max_position_embeddings: int = _D["max_position_embeddings"]
    use_bias: bool = _D["use_bias"]
    tie_word_embeddings: bool = _D["tie_word_embeddings"]
    hidden_dropout: float | int = _D["hidden_dropout"]
    attention_dropout: float | int = _D["attention_dropout"]
    use_cache: bool = _D["use_cache"]
    is_decoder: bool | None = _D["is_decoder"]
    bos_token_id: int | None = _D["bos_token_id"]
    eos_token_id: int | list | None = _D["eos_token_id"]
    pad_token_id: int | None = _D["pad_token_id"]

    def __post_init__(self, **kwargs: Any) -> None:
        """Refuse unknown keys, then let everything that follows from others follow."""
        known = {field.name for field in dataclass_fields(self)}
        for key in kwargs:
            if key not in TRANSFORMERS_KEYS:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else "see the fields of GnomonConfig"
                raise ValueError(f"unknown configuration key {key!r}; {hint}")
        for name, value in self._resolved().items():
            setattr(self, name, value)
        super().__post_init__(**kwargs)

    def convert_rope_params_to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Keep `rope_parameters` as `resolve` has filled it; there are no older spellings to translate."""
        return kwargs

    def validate_architecture(self) -> None:
        """Check that the fields fit together (called by the strict dataclass)."""
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}; got {getattr(self, name)!r}")
        for name in POSITIVE:
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        for name in PROBABILITIES:
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} is a probability from 0 to below 1; got {getattr(self, name)}")
        for name in ("norm_eps", "initializer_range"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0 and finite; got {getattr(self, name)}")
        for name, value in UNUSED.items():
            if getattr(self, name) != value:
                raise ValueError(f"{name} has no meaning for gnomon's models; leave it at {value}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads must divide num_attention_heads ({self.num_attention_heads}); "
                f"got {self.num_key_value_heads}"
            )
        if (
            self.hidden_size % self.num_attention_heads
            and self.head_dim == self.hidden_size // self.num_attention_heads
        ):
            raise ValueError(
                f"hidden_size must be divisible by num_attention_heads ({self.num_attention_heads}) "
                f"unless head_dim is set; got {self.hidden_size}"
            )
        self._check_projection()
        self._check_rotary()

    def _check_projection(self) -> None:
        pattention = "pattention" in (self.projection, self.feed_forward)
        for name in TOKEN_FIELDS:
            owner = "feed_forward" if name == "num_feed_forward_tokens" else "projection"
            if getattr(self, owner) == "pattention":
                check_tokens(name, getattr(self, name), self.num_hidden_layers)
            elif getattr(self, name) is not None:
                raise ValueError(f"{name} needs {owner}: pattention, since nothing else has parameter tokens")
        if self.feed_forward == "pattention" and self.intermediate_size is not None:
            raise ValueError("intermediate_size needs feed_forward: mlp or glu; a Pattention has no hidden width")
        if self.use_bias and self.projection == self.feed_forward == "pattention":
            raise ValueError("use_bias needs a linear layer: Pattention has no biases; set projection to linear")
        if self.learn_score_scale and not pattention:
            raise ValueError("learn_score_scale needs Pattention; set projection or feed_forward to pattention")
        if self.learn_score_scale and self.score == "gelu":
            raise ValueError("learn_score_scale needs a score that normalizes; gelu has no score scale")

    def _check_rotary(self) -> None:
        if self.positions != "rotary":
            if self.rope_parameters:
                raise ValueError(f"rope_parameters needs positions: rotary; got positions: {self.positions}")
            return
        rope = self.rope_parameters
        if unknown := set(rope) - {"rope_type", "rope_theta", "partial_rotary_factor"}:
            raise ValueError(f"rope_parameters takes rope_theta and partial_rotary_factor; got {sorted(unknown)}")
        if rope["rope_type"] != "default":
            raise ValueError(f"rope_parameters supports rope_type default alone; got {rope['rope_type']!r}")
        for name in ("rope_theta", "partial_rotary_factor"):
            number = rope[name]
            if not isinstance(number, int | float) or isinstance(number, bool) or not 0.0 < number < math.inf:
                raise ValueError(f"{name} of rope_parameters must be a number above 0; got {number!r}")
        if rope["partial_rotary_factor"] > 1.0 or self.rotary_size % 2 or self.rotary_size < 2:
            raise ValueError(
                f"partial_rotary_factor of head_dim {self.head_dim} must give an even number of at least 2 dimensions; "
                f"got {rope['partial_rotary_factor']}, which gives {self.rotary_size}"
            )

    @property
    def rotary_size(self) -> int:
        """How many dimensions of a head turn."""
        return int(self.head_dim * self.rope_parameters["partial_rotary_factor"] + 1e-6)  # 3 / 44 * 44 is 2.9999...

    def _resolved(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in DEFAULTS}
        full = resolve(values)
        return {name: full[name] for name in DEFAULTS if full[name] != values[name]}


AutoConfig.register(GnomonConfig.model_type, GnomonConfig, exist_ok=True)

__all__ = ["GnomonConfig"]
