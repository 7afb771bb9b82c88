"""The fast path of Pattention, chosen in one place and equal to `functional` in outputs and gradients.

What costs time in an eager Pattention besides its two matrix products are passes over the (positions, tokens)
matrix of scores. The equations of `functional`, differentiated by autograd, make about eighteen of them for an L2
score; `FusedPattention` makes nine, most of them in place.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from gnomon.nn import functional

FUSED_SCORES = ("l2_norm_gelu", "gelu_l2_norm")
"""The scores with a hand-written backward pass; softmax and gelu are each one fused torch operation already."""


class FusedPattention(torch.autograd.Function):
    """Pattention with an L2 score, its gradient written out.

    With r = 1 / sqrt(sum A^2 / tau^2 + eps) and the normalized Z = r A (all per row), the gradient of a row is

        dA = r (dZ - Z <dZ, Z> / tau^2),   dtau = <dZ, Z> (1 - eps r^2) / tau

    Source: the derivative of TF eq. 5, with epsilon kept in r. For `gelu_l2_norm` GELU(A) stands for A and the
    derivative of the GELU is applied last.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        key_tokens: Tensor,
        value_tokens: Tensor,
        score_scale: Tensor,
        score: str,
        eps: float,
    ) -> Tensor:
        """Compute Theta(X K^T) V and keep what the gradient needs."""
        scores = F.linear(x, key_tokens)
        if score == "l2_norm_gelu":
            normalized, factor = _normalize_(scores, score_scale, eps)
            kept, weights = normalized, F.gelu(normalized)
        else:
            kept = scores
            weights, factor = _normalize_(F.gelu(scores), score_scale, eps)
        ctx.save_for_backward(x, key_tokens, value_tokens, score_scale, kept, weights, factor)
        ctx.score, ctx.eps = score, eps
        return weights @ value_tokens

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the inputs, the tokens and tau."""
        x, key_tokens, value_tokens, score_scale, kept, weights, factor = ctx.saved_tensors
        # Somebody wants the gradient of this gradient: go through the equations. The views keep this layer's own
        # gradient apart from that of an earlier layer which shares its tokens and which x depends on.
        if torch.is_grad_enabled():
            inputs = [t.view_as(t) for t in (x, key_tokens, value_tokens, score_scale)]
            output = functional.pattention(*inputs[:3], score=ctx.score, score_scale=inputs[3], eps=ctx.eps)
            wanted = [t for t, needed in zip(inputs, ctx.needs_input_grad, strict=False) if needed]
            found = iter(torch.autograd.grad(output, wanted, grad, create_graph=True))
            return (*(next(found) if needed else None for needed in ctx.needs_input_grad[:4]), None, None)
        flat_grad = grad.reshape(-1, grad.shape[-1])
        flat_weights = weights.reshape(-1, weights.shape[-1])
        grad_values = flat_weights.T @ flat_grad if ctx.needs_input_grad[2] else None
        grad_scores = F.linear(grad, value_tokens)
        if ctx.score == "l2_norm_gelu":
            grad_scores = torch.ops.aten.gelu_backward(grad_scores, kept)
            inner = _through_norm_(grad_scores, kept, factor, score_scale)
        else:
            inner = _through_norm_(grad_scores, weights, factor, score_scale)
            grad_scores = torch.ops.aten.gelu_backward(grad_scores, kept)
        grad_scale = None
        if ctx.needs_input_grad[3]:
            grad_scale = (inner * (1 - ctx.eps * factor.square())).sum().div(score_scale).reshape_as(score_scale)
        grad_x = grad_scores @ key_tokens if ctx.needs_input_grad[0] else None
        flat_scores = grad_scores.reshape(-1, grad_scores.shape[-1])
        grad_keys = flat_scores.T @ x.reshape(-1, x.shape[-1]) if ctx.needs_input_grad[1] else None
        return grad_x, grad_keys, grad_values, grad_scale, None, None


def pattention(
    x: Float[Tensor, "*batch in_features"],
    key_tokens: Float[Tensor, "tokens in_features"],
    value_tokens: Float[Tensor, "tokens out_features"],
    *,
    score: str,
    score_scale: Tensor | None,
    eps: float = functional.EPSILON,
) -> Float[Tensor, "*batch out_features"]:
    """`functional.pattention` by its fastest equal path.

    Under torch.compile and torch.export the equations are used as they are, since the compiler fuses them itself.

    Args:
        x: the inputs X.
        key_tokens: K_P.
        value_tokens: V_P.
        score: a name of `functional.SCORES`.
        score_scale: tau as a tensor; None for `gelu`.
        eps: times tau^2, added to the sum of squares of a score row.

    Returns:
        What `functional.pattention` returns.
    """
    if score not in FUSED_SCORES or torch.compiler.is_compiling() or _transforms_active():
        return functional.pattention(x, key_tokens, value_tokens, score=score, score_scale=score_scale, eps=eps)
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, key_tokens, value_tokens = (t.to(dtype) for t in (x, key_tokens, value_tokens))
    output: Tensor = FusedPattention.apply(x, key_tokens, value_tokens, score_scale, score, eps)  # type: ignore[no-untyped-call]
    return output


def _transforms_active() -> bool:
    """Whether torch.func transforms (vmap, jvp) are at work, which the hand-written gradient does not know."""
    return bool(torch._C._are_functorch_transforms_active())


def _normalize_(rows: Tensor, score_scale: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Multiply each row in place by r = 1 / sqrt(sum of squares / tau^2 + eps); return the rows and r."""
    wide = torch.promote_types(rows.dtype, torch.float32)
    norm = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=wide)
    factor = norm.div_(score_scale).square_().add_(eps).rsqrt_()
    return rows.mul_(factor), factor


def _through_norm_(grad: Tensor, normalized: Tensor, factor: Tensor, score_scale: Tensor) -> Tensor:
    """Turn dZ in place into dA = r (dZ - Z <dZ, Z> / tau^2); return the rows' <dZ, Z>."""
    inner: Tensor = torch.linalg.vecdot(grad, normalized).unsqueeze(-1).to(factor.dtype)
    grad.addcmul_(normalized, (inner / score_scale.square()).neg_().to(grad.dtype)).mul_(factor)
    return inner
