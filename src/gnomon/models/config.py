"""`GnomonConfig`: one flat, typed, strict configuration for every model of the library."""

import difflib
import functools
from dataclasses import fields as dataclass_fields
from typing import Any

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig

from gnomon.models.checks import check_fields
from gnomon.models.sizes import DEFAULTS, resolve

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
        vocab_size: rows of the embedding table; without a table for images and sound, else 50,304 if unset.
        hidden_size: d, the width of the residual stream.
        num_hidden_layers: L; of an encoder-decoder all layers, 12 of a single stack if unset.
        encoder_layers: N, for an encoder-decoder.
        decoder_layers: M, for an encoder-decoder.
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
        norm_placement: where the norms stand in a block, a name of `gnomon.nn.placements`.
        norm: of the blocks; `layer_plain` with pattention, else `layer`, if unset.
        final_norm: after the last block; `none` after `post` and `deep`, `layer` where the blocks have `layer_plain`,
            else as the blocks, if unset.
        norm_eps: added to the variance.
        residual_scale: DeepNorm's alpha ([encoder's, decoder's] for a pair) where it is not what follows from the
            depth; growth in depth holds it.
        use_parallel_residual: attention and feed-forward layer of a block see the same stream (GPT-NeoX's form).
        initialization: rule of `gnomon.nn.initialization`; follows norm placement and projection if unset.
        initialization_flavor: of `magneto` and `deepnet`: the papers' or torchscale's.
        initializer_range: the standard deviation that `tokenformer` and `normal` start from.
        positions: `rotary`, `xpos`, `learned`, `sinusoidal`, `sinusoidal_2d`, `relative_bias`, `alibi` or `none`;
            for images `learned` (one row a patch), else `rotary`, if unset.
        position_offset: the number of the first position, for `learned` and `sinusoidal` (2 in fairseq's models).
        rope_parameters: rope_theta and, for `rotary`, partial_rotary_factor (the share of a head that turns).
        relative_attention_num_buckets: rows of the table of `relative_bias`.
        relative_attention_max_distance: from which on all distances share a bucket.
        relative_attention_bidirectional: whether later tokens have buckets of their own; as the stack looks if unset.
        scale_embedding: multiply token embeddings by sqrt(d).
        max_position_embeddings: longest sequence the model is meant for.
        use_bias: biases in linear layers.
        tie_word_embeddings: the head shares the embedding table.
        hidden_dropout: of embeddings and sublayer outputs.
        attention_dropout: of the attention weights.
        drop_path_rate: of the last layer's sublayers (stochastic depth), rising linearly from 0 at the first.
        classifier_pooling: what a classifier reads: the `first` token, the `mean`, or the `last` token; the last for
            a decoder, the class token of images that have one (the first), and else the mean if unset.
        image_size: height and width of images in pixels, one number or [height, width]; makes a model of images.
        patch_size: height and width of a patch, one number or [height, width]; 16 if unset.
        num_channels: of an image; 3 if unset.
        patch_projection: `linear` or `pattention`, from a patch's pixels to an embedding; linear if unset.
        num_patch_tokens: parameter tokens of a Pattention there; d if unset.
        stem_conv_channels: of convolutions before the patches are cut, a list; each halves height and width; none if
            unset.
        use_class_token: an embedding of its own before those of the patches; true for images if unset.
        use_image_padding: fill images up to whole patches with zeros, where they would be refused; false if unset.
        num_modalities: kinds of tokens with parameters of their own, told apart by `modality_ids`; none if unset.
        multiway: what is a modality's own: `separate` copies of every layer, or `tokens` beside shared parameter
            tokens; separate if unset.
        num_modality_tokens: parameter tokens of each modality at every site, for `tokens`; d if unset.
        num_mel_bins: of a filterbank's frame; makes a model of sound.
        subsampling_factor: frames a position, a power of 2; 4 if unset.
        subsampling_conv_channels: of the convolutions that do it; d if unset.
        subsampling_conv_kernel_size: of these, in frames; 3 if unset.
        num_conv_pos_embeddings: kernel size, in positions, of a convolution that adds positions; none if unset.
        num_conv_pos_embedding_groups: of that convolution; one a head if unset.
        use_cache: keep keys and values while generating.
        is_decoder: causal or not; a head class sets it when unset and refuses the opposite.
        bos_token_id: id that begins a text.
        eos_token_id: id that ends a text.
        pad_token_id: id of padding.
        decoder_start_token_id: id that a decoder's text begins with, for an encoder-decoder.

    Raises:
        ValueError: for an unknown key (with the nearest known one), a value outside its choices, sizes that do not
            fit together, or token counts of the wrong form.
        TypeError: for a value of the wrong type.

    >>> GnomonConfig(hidden_size=64, num_attention_heads=4).num_feed_forward_tokens
    256
    """

    model_type = "gnomon"
    keys_to_ignore_at_inference = ["cache"]

    vocab_size: int | None = _D["vocab_size"]
    hidden_size: int = _D["hidden_size"]
    num_hidden_layers: int | None = _D["num_hidden_layers"]
    encoder_layers: int | None = _D["encoder_layers"]
    decoder_layers: int | None = _D["decoder_layers"]
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
    residual_scale: float | list | None = _D["residual_scale"]
    use_parallel_residual: bool = _D["use_parallel_residual"]
    initialization: str | None = _D["initialization"]
    initialization_flavor: str = _D["initialization_flavor"]
    initializer_range: float = _D["initializer_range"]
    positions: str | None = _D["positions"]
    position_offset: int = _D["position_offset"]
    rope_parameters: dict | None = _D["rope_parameters"]
    relative_attention_num_buckets: int = _D["relative_attention_num_buckets"]
    relative_attention_max_distance: int = _D["relative_attention_max_distance"]
    relative_attention_bidirectional: bool | None = _D["relative_attention_bidirectional"]
    scale_embedding: bool = _D["scale_embedding"]
    max_position_embeddings: int = _D["max_position_embeddings"]
    use_bias: bool = _D["use_bias"]
    tie_word_embeddings: bool = _D["tie_word_embeddings"]
    hidden_dropout: float | int = _D["hidden_dropout"]
    attention_dropout: float | int = _D["attention_dropout"]
    drop_path_rate: float | int = _D["drop_path_rate"]
    classifier_pooling: str | None = _D["classifier_pooling"]
    image_size: int | list | None = _D["image_size"]
    patch_size: int | list | None = _D["patch_size"]
    num_channels: int | None = _D["num_channels"]
    patch_projection: str | None = _D["patch_projection"]
    num_patch_tokens: int | None = _D["num_patch_tokens"]
    stem_conv_channels: list | None = _D["stem_conv_channels"]
    use_class_token: bool | None = _D["use_class_token"]
    use_image_padding: bool | None = _D["use_image_padding"]
    num_modalities: int | None = _D["num_modalities"]
    multiway: str | None = _D["multiway"]
    num_modality_tokens: int | None = _D["num_modality_tokens"]
    num_mel_bins: int | None = _D["num_mel_bins"]
    subsampling_factor: int | None = _D["subsampling_factor"]
    subsampling_conv_channels: int | None = _D["subsampling_conv_channels"]
    subsampling_conv_kernel_size: int | None = _D["subsampling_conv_kernel_size"]
    num_conv_pos_embeddings: int | None = _D["num_conv_pos_embeddings"]
    num_conv_pos_embedding_groups: int | None = _D["num_conv_pos_embedding_groups"]
    use_cache: bool = _D["use_cache"]
    is_decoder: bool | None = _D["is_decoder"]
    bos_token_id: int | None = _D["bos_token_id"]
    eos_token_id: int | list | None = _D["eos_token_id"]
    pad_token_id: int | None = _D["pad_token_id"]
    decoder_start_token_id: int | None = _D["decoder_start_token_id"]

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
        is_pair = self.encoder_layers is not None and self.decoder_layers is not None
        if self.is_encoder_decoder and not is_pair:
            raise ValueError(
                "is_encoder_decoder follows from encoder_layers and decoder_layers, which are unset; set these two, or "
                "leave it out"
            )
        self.is_encoder_decoder = is_pair
        super().__post_init__(**kwargs)

    def convert_rope_params_to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Keep `rope_parameters` as `resolve` has filled it; there are no older spellings to translate."""
        return kwargs

    def validate_architecture(self) -> None:
        """Check that the fields fit together (called by the strict dataclass)."""
        check_fields(self)

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
