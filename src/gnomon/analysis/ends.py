"""What stands before and after the blocks of a model, by formula: tables, front ends and heads. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnomon.analysis.sound import front_end
from gnomon.models.sizes import extents, image_grid

NORM_PARAMETERS = {"layer": 2, "layer_plain": 0, "rms": 1, "none": 0}
"""Learned numbers per channel of each norm."""


@dataclass(frozen=True)
class Ends:
    """Learned numbers before and after the blocks.

    Args:
        tables: of tokens, which a tied head multiplies with.
        places: looked up and added: learned positions, a class token, a mask token, relative biases.
        stem: weights of the convolutions before patches are cut.
        stem_products: their multiplications for each patch.
        front: weights that make embeddings of patches or of frames.
        head: weights that read a position or a row; 0 where the table does.
        painter: weights that paint a hidden patch.
        biases: of all of them.
        norms: weights and biases of the norms between the stem's convolutions.
    """

    tables: int = 0
    places: int = 0
    stem: int = 0
    stem_products: int = 0
    front: int = 0
    head: int = 0
    painter: int = 0
    biases: int = 0
    norms: int = 0


CLASSIFIERS = {"GnomonForSequenceClassification", "GnomonForTokenClassification"}
"""Heads for texts that read classes where others read tokens."""


def num_labels(fields: Mapping[str, Any]) -> int:
    """The classes of a classifier; two where its configuration names none, as transformers has it."""
    return fields.get("num_labels") or len(fields.get("id2label") or "01")


def ends(fields: Mapping[str, Any]) -> Ends:
    """The ends of a model of text, of sound, of images, or of images and texts in one stack.

    Args:
        fields: resolved fields. `architectures`, if it is there, tells classifiers of texts and painters of hidden
            patches from other heads. A classifier's head counts as if it read every token.
    """
    if fields["image_size"] is not None:
        return _of_images(fields)
    width, has_pair, is_tied = fields["hidden_size"], fields["is_encoder_decoder"], fields["tie_word_embeddings"]
    places = _places(fields) * (2 if has_pair else 1)
    if fields["num_mel_bins"] is not None:
        front, answers = front_end(fields), fields["vocab_size"] or num_labels(fields)
        return Ends(
            tables=answers * width if has_pair else 0,
            places=places,
            front=front.weights,
            head=0 if has_pair and is_tied else answers * width,
            biases=front.biases + (0 if has_pair else answers),
        )
    table = fields["vocab_size"] * width
    if CLASSIFIERS & set(fields.get("architectures") or ()):
        return Ends(tables=table, places=places, head=num_labels(fields) * width, biases=num_labels(fields))
    if is_tied:
        return Ends(tables=table, places=places)
    return Ends(tables=table * (2 if has_pair else 1), places=places, head=table)


def _places(fields: Mapping[str, Any]) -> int:
    """Learned positions of one stack of text or sound."""
    if fields["positions"] == "learned":
        rows = fields["max_position_embeddings"] + fields["position_offset"]
        return int(rows * fields["hidden_size"])
    if fields["positions"] == "relative_bias":
        return int(fields["relative_attention_num_buckets"] * fields["num_attention_heads"])
    return 0


def _of_images(fields: Mapping[str, Any]) -> Ends:
    """Patches with a classifier, with a painter of hidden ones, or beside the tokens of texts."""
    width, vocabulary = fields["hidden_size"], fields["vocab_size"]
    rows, columns = image_grid(fields)
    down, across = extents(fields["patch_size"])
    pixels, own = fields["num_channels"] * down * across, int(fields["use_class_token"])
    is_linear = fields["patch_projection"] == "linear"
    channels = list(fields["stem_conv_channels"] or ())
    sizes = [fields["num_channels"], *channels]
    stem = [9 * size * count for size, count in zip(sizes, channels, strict=False)]
    read = sizes[-1] * down * across // 4 ** len(channels)
    paints = vocabulary is not None or "GnomonForMaskedImageModeling" in (fields.get("architectures") or ())
    labels = 0 if paints else num_labels(fields)
    table, places = (vocabulary or 0) * width, own + int(paints)
    if fields["positions"] == "learned":
        places += rows * columns + own
    return Ends(
        tables=table,
        places=places * width,
        stem=sum(stem),
        stem_products=sum(weights * down * across // 4 ** (i + 1) for i, weights in enumerate(stem)),
        front=read * width if is_linear else fields["num_patch_tokens"] * (read + width),
        head=labels * width + (0 if fields["tie_word_embeddings"] else table),
        painter=pixels * width if paints else 0,
        biases=(sum(channels) + width * is_linear + labels + (pixels if paints else 0)) if fields["use_bias"] else 0,
        norms=sum(channels) * NORM_PARAMETERS[fields["norm"]],
    )
