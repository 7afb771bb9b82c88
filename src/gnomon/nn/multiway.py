"""Multiway layers: every token goes through the parameters of its own modality, told by an id in the call.

| form | a token of modality m sees | source |
|---|---|---|
| `separate` | its own copy of the layer, f_m | BEiT-3 (arXiv 2208.10442), section 2.1 |
| `tokens` | shared parameter tokens and its own, K = [K_shared; K_m], V = [V_shared; V_m] | an idea of TF section 5 |

Differs: torchscale splits a sequence at a position that it keeps in the module between calls, so that all rows have
the same split; here nothing is kept, and rows may mix modalities in any order.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gnomon.nn import kernels
from gnomon.nn.projections import Pattention


class Multiway(nn.Module):
    """A layer that has to be told the modality of every token: its `forward` takes the inputs and the ids."""


def call(layer: nn.Module, x: Tensor, modality_ids: Tensor | None) -> Tensor:
    """Apply a layer that may be multiway.

    Args:
        layer: any layer on the last axis.
        x: its inputs.
        modality_ids: of every token; a layer that is not multiway has no use for them.

    Returns:
        Its outputs.

    Raises:
        ValueError: a multiway layer without ids.
    """
    if not isinstance(layer, Multiway):
        output: Tensor = layer(x)
        return output
    if modality_ids is None:
        raise ValueError("a multiway model needs modality_ids, the modality of every token; got none: give them")
    routed: Tensor = layer(x, modality_ids)
    return routed


def copies(layer: nn.Module) -> list[nn.Module]:
    """The plain layers that stand at one place of a model.

    Args:
        layer: any layer.

    Returns:
        A copy for each modality, or the layer itself where there are none.
    """
    return list(layer.copies) if isinstance(layer, SeparateLayers) else [layer]


def route(x: Tensor, modality_ids: Tensor, layers: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
    """Send every token through the function of its modality.

        y_t = f_{m_t}(x_t)

    A compiler computes every function on every token and picks, since it cannot know how many tokens go where; eagerly
    each function gets its own tokens alone. One without tokens runs on none, so that its gradients are zeros.

    Args:
        x: the inputs, (..., in_features).
        modality_ids: m, of the same shape without the last axis, from 0.
        layers: f, one a modality; each acts on the last axis alone.

    Returns:
        (..., out_features).

    Raises:
        ValueError: ids of another shape, or beyond the modalities.
    """
    if modality_ids.shape != x.shape[:-1]:
        raise ValueError(
            f"modality_ids must have one entry a token, {tuple(x.shape[:-1])}; got {tuple(modality_ids.shape)}"
        )
    if torch.compiler.is_compiling():
        output = layers[0](x)
        for modality, layer in enumerate(layers[1:], start=1):
            output = torch.where((modality_ids == modality).unsqueeze(-1), layer(x), output)
        return output
    flat, ids = x.flatten(0, -2), modality_ids.flatten()
    places = [(ids == modality).nonzero().squeeze(-1) for modality in range(len(layers))]
    order = torch.cat(places)
    if len(order) != len(ids):
        raise ValueError(f"modality_ids must lie in 0 to {len(layers) - 1}; got {int(ids.min())} to {int(ids.max())}")
    outputs = torch.cat([layer(flat[place]) for layer, place in zip(layers, places, strict=True)])
    return outputs[order.argsort()].reshape(*x.shape[:-1], outputs.shape[-1])


class SeparateLayers(Multiway):
    """One copy of a layer for each modality.

        y_t = f_{m_t}(x_t)

    Source: BEiT-3, section 2.1 (a feed-forward expert a modality); torchscale copies projections and norms as well.

    Args:
        layers: the copies, each acting on the last axis alone.
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.copies = nn.ModuleList(layers)

    def forward(
        self, x: Float[Tensor, "*batch in_features"], modality_ids: Int[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch out_features"]:
        """Apply each token's copy."""
        return route(x, modality_ids, list(self.copies))


class MultiwayPattention(Multiway):
    """Pattention whose parameter tokens are partly shared and partly those of a modality.

        y_t = Pattention(x_t, [K_shared; K_m], [V_shared; V_m]),   m = m_t

    tau is one for all modalities, and starts from the tokens that one input sees.

    Source: TF section 5 names the merging of models by their tokens; no code for it was released.

    Args:
        shared: the shared tokens; it holds tau as well.
        num_modalities: M.
        num_modality_tokens: of each modality.
    """

    def __init__(self, shared: Pattention, *, num_modalities: int, num_modality_tokens: int) -> None:
        super().__init__()
        self.shared = shared
        shape = (num_modalities, num_modality_tokens)
        self.key_tokens = nn.Parameter(torch.empty(*shape, shared.in_features))
        self.value_tokens = nn.Parameter(torch.empty(*shape, shared.out_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw fresh tokens of the modalities, as those that are shared."""
        nn.init.normal_(self.key_tokens, std=self.shared.key_std)
        nn.init.normal_(self.value_tokens, std=self.shared.value_std)

    def forward(
        self, x: Float[Tensor, "*batch in_features"], modality_ids: Int[Tensor, "*batch"]
    ) -> Float[Tensor, "*batch out_features"]:
        """Apply the shared tokens and each token's own."""
        return route(x, modality_ids, [self._one(modality) for modality in range(len(self.key_tokens))])

    def _one(self, modality: int) -> Callable[[Tensor], Tensor]:
        """The Pattention that one modality sees."""
        shared = self.shared

        def pattention(x: Tensor) -> Tensor:
            return kernels.pattention(
                x,
                torch.cat((shared.key_tokens, self.key_tokens[modality])),
                torch.cat((shared.value_tokens, self.value_tokens[modality])),
                score=shared.score,
                score_scale=shared.score_scale,
                eps=shared.eps,
            )

        return pattention

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"num_modalities={self.key_tokens.shape[0]}, num_modality_tokens={self.key_tokens.shape[1]}"
