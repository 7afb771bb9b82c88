"""What a model costs, by formula: parameters, floating-point operations and memory. Imports no torch.

Source: TokenFormer (arXiv 2410.23168), its comparison of training costs. A multiplication with its addition
counts as two operations. Norms, activation functions, rotations and the softmax, all linear in the width, are
left out, as in the paper and in torch's own counter.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from gnomon.analysis.ends import NORM_PARAMETERS
from gnomon.analysis.ends import ends as count_ends
from gnomon.analysis.sound import forward_flops_per_frame
from gnomon.models.sizes import image_grid, layer_tokens, resolve

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes a number takes."""


@dataclass(frozen=True)
class ParameterCounts:
    """How many numbers a model learns, by kind; a tied head is counted once, as the embedding.

    `attention` and `feed_forward` hold weights and parameter tokens alone: all that a forward pass multiplies
    with, but for the head.
    """

    embedding: int
    attention: int
    feed_forward: int
    norms: int
    biases: int
    score_scales: int
    head: int

    @property
    def non_embedding(self) -> int:
        """The paper's N: 2 L d (n_query + n_key + n_value + n_output + n_feed_forward) for a TokenFormer."""
        return self.attention + self.feed_forward

    @property
    def total(self) -> int:
        """Everything that is learned."""
        return sum(asdict(self).values())

    def to_dict(self) -> dict[str, int]:
        """The counts by name, with `non_embedding` and `total`."""
        return {**asdict(self), "non_embedding": self.non_embedding, "total": self.total}


@dataclass(frozen=True)
class MemoryBytes:
    """Bytes that a model's state takes; its activations, which depend on the kernels, are left out."""

    weights: int
    gradients: int
    optimizer: int
    cache: int

    @property
    def training(self) -> int:
        """Weights, gradients and AdamW's moments."""
        return self.weights + self.gradients + self.optimizer

    @property
    def inference(self) -> int:
        """Weights and the key-value cache."""
        return self.weights + self.cache

    def to_dict(self) -> dict[str, int]:
        """The bytes by name, with `training` and `inference`."""
        return {**asdict(self), "training": self.training, "inference": self.inference}


@dataclass(frozen=True)
class _Projection:
    """One projection's numbers: weights (or parameter tokens), biases and score scales."""

    weights: int
    biases: int
    score_scales: int


def _project(fields: Mapping[str, Any], in_size: int, out_size: int, num_tokens: int) -> _Projection:
    """A projection of the attention: `num_tokens` (in_size + out_size) parameter tokens, or a matrix."""
    if fields["projection"] == "pattention":
        return _Projection(num_tokens * (in_size + out_size), 0, _score_scales(fields))
    return _Projection(in_size * out_size, out_size if fields["use_bias"] else 0, 0)


def _feed_forward(fields: Mapping[str, Any], num_tokens: int) -> _Projection:
    """A feed-forward: one Pattention, or two matrices (three when gated)."""
    width, inner = fields["hidden_size"], fields["intermediate_size"]
    if fields["feed_forward"] == "pattention":
        return _Projection(num_tokens * 2 * width, 0, _score_scales(fields))
    inner_matrices = 2 if fields["feed_forward"] == "glu" else 1
    biases = inner_matrices * inner + width if fields["use_bias"] else 0
    return _Projection((inner_matrices + 1) * width * inner, biases, 0)


def _score_scales(fields: Mapping[str, Any]) -> int:
    """A score scale is state, not a parameter, until it is learned; the score `gelu` has none."""
    return int(fields["learn_score_scale"] and fields["score"] != "gelu")


def _layer_norms(fields: Mapping[str, Any]) -> int:
    """What the norms of one layer learn, and the factors of its heads; a Pattention feed-forward has no inner norm."""
    width, heads = fields["hidden_size"], fields["num_attention_heads"]
    inner = 0 if fields["feed_forward"] == "pattention" else fields["intermediate_size"]
    channels = {
        "sub": 2 * width + heads * fields["head_dim"] + inner,
        "peri": 4 * width,
        "normformer": 3 * width + inner,
    }
    placement = fields["norm_placement"]
    factors = heads if placement == "normformer" else 0
    return NORM_PARAMETERS[fields["norm"]] * channels.get(placement, 2 * width) + factors


def count_parameters(fields: Mapping[str, Any], *, is_active: bool = False) -> ParameterCounts:
    """Count a model's parameters from its configuration: of text or sound, of images, or of images and texts.

    Args:
        fields: A preset's fields, or those of a checkpoint's `config.json`; defaults are filled in.
        is_active: Of a multiway model, count what one token passes instead of what all modalities have.

    Returns:
        The counts by kind.

    >>> from gnomon.models.presets import PRESETS
    >>> count_parameters(PRESETS["tokenformer-150m"]).total
    151881216
    """
    if both := towers(fields):
        parts = [replace(count_parameters(tower, is_active=is_active), head=0) for tower in both]
        sums = {name: sum(getattr(part, name) for part in parts) for name in asdict(parts[0])}
        return ParameterCounts(**{**sums, "head": tower_heads(fields), "score_scales": sums["score_scales"] + 1})
    fields = resolve(fields)
    width, num_layers = fields["hidden_size"], fields["num_hidden_layers"]
    query_size = fields["num_attention_heads"] * fields["head_dim"]
    key_size = fields["num_key_value_heads"] * fields["head_dim"]
    attention: list[_Projection] = []
    feed_forward: list[_Projection] = []
    modalities = 1 if is_active else fields["num_modalities"] or 1
    own = modalities * (fields["num_modality_tokens"] or 0)
    for layer in range(num_layers):
        tokens = {site: count + own for site, count in layer_tokens(fields, layer).items()}
        attention += [
            _project(fields, width, query_size, tokens["query"]),
            _project(fields, width, key_size, tokens["key"]),
            _project(fields, width, key_size, tokens["value"]),
            _project(fields, query_size, width, tokens["output"]),
        ]
        if fields["is_encoder_decoder"] and layer >= fields["encoder_layers"]:
            attention += attention[-4:]  # the decoder looks at the source through projections of the same sizes
        feed_forward.append(_feed_forward(fields, tokens["feed_forward"]))
    ends, copies = count_ends(fields), modalities if fields["multiway"] == "separate" else 1
    looks = fields["decoder_layers"] if fields["is_encoder_decoder"] else 0
    own_norms = looks * (2 if fields["norm_placement"] == "peri" else 1) * NORM_PARAMETERS[fields["norm"]]
    final_norms = (2 if looks else 1) * NORM_PARAMETERS[fields["final_norm"]]
    return ParameterCounts(
        embedding=ends.tables + ends.places + ends.stem + ends.front,
        attention=copies * sum(part.weights for part in attention),
        feed_forward=copies * sum(part.weights for part in feed_forward),
        norms=copies * (num_layers * _layer_norms(fields) + width * (own_norms + final_norms)) + ends.norms,
        biases=copies * sum(part.biases for part in attention + feed_forward) + ends.biases,
        score_scales=copies * sum(part.score_scales for part in attention + feed_forward),
        head=ends.head + ends.painter,
    )


def towers(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The resolved fields of the towers of images and of texts; none for a single model.

    Args:
        fields: those of a checkpoint's `config.json`.
    """
    if "vision_config" not in fields:
        return []
    return [resolve(fields["vision_config"]), resolve(fields.get("text_config") or {})]


def tower_heads(fields: Mapping[str, Any]) -> int:
    """Weights of the projections of both towers into their shared space."""
    return sum(tower["hidden_size"] for tower in towers(fields)) * int(fields.get("projection_dim") or 512)


def image_positions(fields: Mapping[str, Any]) -> int:
    """The patches of an image and its class token; 0 for a model without images.

    Args:
        fields: resolved fields; of two towers, those of both.
    """
    if both := towers(fields):
        return image_positions(both[0])
    if fields["image_size"] is None:
        return 0
    rows, columns = image_grid(fields)
    return rows * columns + int(fields["use_class_token"])


def token_attention_flops(fields: Mapping[str, Any], sequence_length: int) -> int:
    """Operations of token-token attention over one sequence: 4 L d T^2, the part that growth leaves alone.

    Args:
        fields: As for `count_parameters`.
        sequence_length: T, in tokens; of images what their sizes say, of an image with a text the sum. A causal mask
            is counted in full, as the paper and torch's counter do.
    """
    if both := towers(fields):
        return sum(token_attention_flops(tower, sequence_length) for tower in both)
    fields = resolve(fields)
    if fields["num_mel_bins"] is not None:
        sequence_length = sequence_length // fields["subsampling_factor"]
    if positions := image_positions(fields):
        sequence_length = positions + (0 if fields["vocab_size"] is None else sequence_length)
    width = fields["num_attention_heads"] * fields["head_dim"]
    return 4 * fields["num_hidden_layers"] * width * sequence_length**2


def forward_flops_per_token(fields: Mapping[str, Any], sequence_length: int) -> int:
    """Operations of a forward pass, per token: 2 (N + V d) + 4 L d T.

    Of two towers per pair, the text being of T tokens. Of images per image: each of its T positions passes the layers,
    each patch its projection, and the head reads one. Of images and texts in one stack per pair: all positions pass
    the layers, and a head reads each patch and each token.

    In an encoder-decoder a token of the source passes the encoder, and one of the target the decoder and the head,
    whose layers attend twice; the mean of the two is N + V d + 2 (L_encoder + 2 L_decoder) d T.

    Differs: the paper's headline figures leave the output head, V d, out.

    Args:
        fields: As for `count_parameters`.
        sequence_length: T, the tokens of one sequence.
    """
    if both := towers(fields):
        of_images, of_texts = map(count_ends, both)
        images = forward_flops_per_token(both[0], sequence_length) - 2 * of_images.head
        texts = forward_flops_per_token(both[1], sequence_length) - 2 * of_texts.head
        table = 0 if of_texts.head else 2 * of_texts.tables  # a tied table is read by no head
        return images + sequence_length * (texts - table) + 2 * tower_heads(fields)
    fields = resolve(fields)
    ends = count_ends(fields)
    if fields["image_size"] is not None:
        positions, tokens = image_positions(fields), 0 if fields["vocab_size"] is None else sequence_length
        weights = count_parameters(fields, is_active=True).non_embedding * (positions + tokens)
        per_patch = ends.stem_products + ends.front + ends.painter
        patches = per_patch * (positions - fields["use_class_token"])
        read = ends.head if not tokens else tokens * (ends.head or ends.tables)
        return 2 * (weights + patches + read) + token_attention_flops(fields, sequence_length)
    if fields["num_mel_bins"] is not None:
        blocks = count_parameters(fields, is_active=True).non_embedding
        return forward_flops_per_frame(fields, sequence_length, blocks, ends.head or ends.tables)
    products = 2 * (count_parameters(fields, is_active=True).non_embedding + (ends.head or ends.tables))
    if fields["is_encoder_decoder"]:
        width = fields["num_attention_heads"] * fields["head_dim"]
        looks = fields["encoder_layers"] + 2 * fields["decoder_layers"]
        return products // 2 + 2 * looks * width * sequence_length
    return products + token_attention_flops(fields, sequence_length) // sequence_length


def training_flops(fields: Mapping[str, Any], tokens: int, sequence_length: int) -> int:
    """Operations of training on `tokens` tokens: a backward pass costs two forward passes.

    Args:
        fields: As for `count_parameters`.
        tokens: All tokens that training sees, repeats included; of images all images, of sound all frames.
        sequence_length: T, the tokens of one sequence.
    """
    return 3 * tokens * forward_flops_per_token(fields, sequence_length)


def memory_bytes(
    fields: Mapping[str, Any], sequence_length: int, batch_size: int = 1, dtype: str = "float32"
) -> MemoryBytes:
    """Memory of a model's state: weights, gradients, AdamW's two moments, and the key-value cache.

    Args:
        fields: As for `count_parameters`.
        sequence_length: Tokens that the cache holds per row; an encoder has none.
        batch_size: Rows that the cache holds.
        dtype: Of weights and cache: float32, bfloat16 or float16. In training, mixed precision keeps weights,
            gradients and moments in float32; this counts the gradients and moments so.

    Raises:
        ValueError: The dtype is none of these.
    """
    if dtype not in BYTES:
        raise ValueError(f"dtype must be one of {', '.join(BYTES)}, not {dtype!r}.")
    total, cached = count_parameters(fields).total, 0
    fields = fields if towers(fields) else resolve(fields)
    if not towers(fields) and fields["image_size"] is None and fields["is_decoder"] is not False:
        key_size = fields["num_key_value_heads"] * fields["head_dim"]
        cached = 2 * fields["num_hidden_layers"] * key_size * sequence_length * batch_size
    return MemoryBytes(
        weights=total * BYTES[dtype], gradients=total * 4, optimizer=total * 8, cache=cached * BYTES[dtype]
    )
