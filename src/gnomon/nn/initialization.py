"""Initial standard deviations as functions of depth and width, each with its source.

A rule answers one question: which standard deviation does this parameter start with? It is asked when a layer is
built, and the layer remembers the answer, so that a gain belongs to the layer's own parameter and is never guessed
from a name.
"""

import math
from collections.abc import Callable

Rule = Callable[[str, str, int, int], float]
"""(site, kind, fan in, fan out) -> standard deviation.

Sites: `embedding`, `query`, `key`, `value`, `output`, `up`, `gate`, `down`, `feed_forward`.
Kinds: `weight` (a matrix), `key_tokens`, `value_tokens`.
"""

RESIDUAL_SITES = ("output", "down")
"""The linear layers whose output is added to the residual stream."""


def tokenformer(*, num_layers: int, hidden_size: int, std: float = 0.02) -> Rule:
    """TokenFormer's initialization.

        keys, embeddings and inner weights: N(0, std^2),   values and residual weights: N(0, (2 / (L sqrt(d)))^2)

    Source: the reference code's configs (`normal` and `wang_init`), facts checked against its parameters.

    Args:
        num_layers: L.
        hidden_size: d.
        std: of keys and embeddings.

    Returns:
        The rule.
    """
    small = 2.0 / (num_layers * math.sqrt(hidden_size))

    def rule(site: str, kind: str, fan_in: int, fan_out: int) -> float:
        return small if kind == "value_tokens" or (site in RESIDUAL_SITES and kind == "weight") else std

    return rule


def normal(*, num_layers: int, hidden_size: int, std: float = 0.02) -> Rule:
    """GPT-2's initialization, the usual one of a pre-norm Transformer.

        everything: N(0, std^2),   residual weights and values: N(0, std^2 / (2 L))

    Source: Radford et al. 2019, section 2.3.

    Args:
        num_layers: L.
        hidden_size: d; unused, for one signature of all rules.
        std: of everything else.

    Returns:
        The rule.
    """
    small = std / math.sqrt(2 * num_layers)

    def rule(site: str, kind: str, fan_in: int, fan_out: int) -> float:
        residual = site in (*RESIDUAL_SITES, "feed_forward") and kind in ("weight", "value_tokens")
        return small if residual else std

    return rule


INITIALIZATIONS: dict[str, Callable[..., Rule]] = {"tokenformer": tokenformer, "normal": normal}
"""The rules by name."""
