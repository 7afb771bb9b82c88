"""The mathematics of the two papers on plain torch: no config and no transformers in this room."""

from gnomon.nn.attention import Attention, dot_product_attention
from gnomon.nn.blocks import Block, Residual
from gnomon.nn.feedforward import FeedForward, GatedFeedForward, build_feed_forward
from gnomon.nn.norms import build_norm
from gnomon.nn.projections import Linear, Pattention, build_projection

__all__ = [
    "Attention",
    "Block",
    "FeedForward",
    "GatedFeedForward",
    "Linear",
    "Pattention",
    "Residual",
    "build_feed_forward",
    "build_norm",
    "build_projection",
    "dot_product_attention",
]
