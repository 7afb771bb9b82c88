"""What a model costs, by formula: parameters, floating-point operations and memory. Imports no torch.

Source: TokenFormer (arXiv 2410.23168), its comparison of training costs. A multiplication with its addition
counts as two operations. Norms, activation functions, rotations and the softmax, all linear in the width, are
left out, as in the paper and in torch's own counter.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from gnomon.analysis.sound import forward_flops_per_frame, front_end
from gnomon.models.sizes import extents, image_grid, layer_tokens, resolve

NORM_PARAMETERS = {"layer": 2, "layer_plain": 0, "rms": 1, "none": 0}
"""Learned numbers per channel of each norm."""

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


@dataclass(frozen=True)
class _Ends:
    """What stands before and after the blocks: tables that are looked up, weights of patches, and the head."""

    tables: int
    patches: int
    head: int
    biases: int = 0


def _num_labels(fields: Mapping[str, Any]) -> int:
    """The classes of a classifier; two where its configuration names none, as transformers has it."""
    return fields.get("num_labels") or len(fields.get("id2label") or "01")


def _ends(fields: Mapping[str, Any]) -> _Ends:
    """The table of tokens and the head of a language model; of images the patches' embeddings and the classifier."""
    width = fields["hidden_size"]
    if fields["num_mel_bins"] is not None:
        front, answers = front_end(fields), fields["vocab_size"] or _num_labels(fields)
        is_tied = fields["is_encoder_decoder"] and fields["tie_word_embeddings"]
        tables = answers * width if fields["is_encoder_decoder"] else 0
        biases = front.biases + (0 if fields["is_encoder_decoder"] else answers)
        return _Ends(tables, front.weights, 0 if is_tied else answers * width, biases)
    if fields["image_size"] is None:
        table = fields["vocab_size"] * width
        return _Ends(table, 0, 0 if fields["tie_word_embeddings"] else table)
    rows, columns = image_grid(fields)
    down, across = extents(fields["patch_size"])
    pixels = fields["num_channels"] * down * across
    is_linear = fields["patch_projection"] == "linear"
    places = rows * columns + fields["use_class_token"] if fields["positions"] == "learned" else 0
    labels = _num_labels(fields)
    return _Ends(
        tables=(places + fields["use_class_token"]) * width,
        patches=pixels * width if is_linear else fields["num_patch_tokens"] * (pixels + width),
        head=labels * width,
        biases=(width * is_linear + labels) if fields["use_bias"] else 0,
    )


def count_parameters(fields: Mapping[str, Any], *, is_active: bool = False) -> ParameterCounts:
    """Count a language model's parameters, or those of a classifier of images, from its configuration.

    Of an encoder-decoder the weights are exact, and the norms lack those before its looks at the source.

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
    ends, copies = _ends(fields), modalities if fields["multiway"] == "separate" else 1
    return ParameterCounts(
        embedding=ends.tables + ends.patches,
        attention=copies * sum(part.weights for part in attention),
        feed_forward=copies * sum(part.weights for part in feed_forward),
        norms=copies * (num_layers * _layer_norms(fields) + width * NORM_PARAMETERS[fields["final_norm"]]),
        biases=copies * sum(part.biases for part in attention + feed_forward) + ends.biases,
        score_scales=copies * sum(part.score_scales for part in attention + feed_forward),
        head=ends.head,
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
        fields: resolved fields.
    """
    if fields["image_size"] is None:
        return 0
    rows, columns = image_grid(fields)
    return rows * columns + int(fields["use_class_token"])


def token_attention_flops(fields: Mapping[str, Any], sequence_length: int) -> int:
    """Operations of token-token attention over one sequence: 4 L d T^2, the part that growth leaves alone.

    Args:
        fields: As for `count_parameters`.
        sequence_length: T, in tokens; of images what their sizes say. A causal mask is counted in full, as the paper
            and torch's counter do.
    """
    fields = resolve(fields)
    sequence_length = image_positions(fields) or sequence_length
    width = fields["num_attention_heads"] * fields["head_dim"]
    return 4 * fields["num_hidden_layers"] * width * sequence_length**2


def forward_flops_per_token(fields: Mapping[str, Any], sequence_length: int) -> int:
    """Operations of a forward pass, per token: 2 (N + V d) + 4 L d T.

    Of two towers per pair, the text being of T tokens. Of images per image: each of its T positions passes the layers,
    each patch its projection, and the head reads one.

    In an encoder-decoder a token of the source passes the encoder, and one of the target the decoder and the head,
    whose layers attend twice; the mean of the two is N + V d + 2 (L_encoder + 2 L_decoder) d T.

    Differs: the paper's headline figures leave the output head, V d, out.

    Args:
        fields: As for `count_parameters`.
        sequence_length: T, the tokens of one sequence.
    """
    if both := towers(fields):
        images, texts = (forward_flops_per_token(tower, sequence_length) - 2 * _ends(tower).head for tower in both)
        table = 0 if _ends(both[1]).head else 2 * _ends(both[1]).tables  # a tied table is read by no head
        return images + sequence_length * (texts - table) + 2 * tower_heads(fields)
    fields = resolve(fields)
    ends = _ends(fields)
    if fields["image_size"] is not None:
        positions = image_positions(fields)
        weights = count_parameters(fields, is_active=True).non_embedding * positions
        patches = ends.patches * (positions - fields["use_class_token"])
        return 2 * (weights + patches + ends.head) + token_attention_flops(fields, positions)
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
        sequence_length: Tokens that the cache holds per row; a model of images has none.
        batch_size: Rows that the cache holds.
        dtype: Of weights and cache: float32, bfloat16 or float16. In training, mixed precision keeps weights,
            gradients and moments in float32; this counts the gradients and moments so.

    Raises:
        ValueError: The dtype is none of these.
    """
    if dtype not in BYTES:
        raise ValueError(f"dtype must be one of {', '.join(BYTES)}, not {dtype!r}.")
    fields = resolve(fields)
    total = count_parameters(fields).total
    key_size = fields["num_key_value_heads"] * fields["head_dim"]
    cached = 2 * fields["num_hidden_layers"] * key_size * sequence_length * batch_size
    cached = cached if fields["image_size"] is None else 0
    return MemoryBytes(
        weights=total * BYTES[dtype], gradients=total * 4, optimizer=total * 8, cache=cached * BYTES[dtype]
    )
