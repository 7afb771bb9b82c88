"""The papers' formulas once more, naively and one row at a time, to compare everything else with.

Nothing here imports gnomon, and nothing here has an epsilon that the papers do not have.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor


def gelu(x: Tensor) -> Tensor:
    """x Phi(x), with Phi the normal distribution function."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def score_row(scores: Tensor, score: str, tau: float | Tensor) -> Tensor:
    """The weights of one row of scores (n,), term by term."""
    if score == "gelu":
        return gelu(scores)
    if score == "softmax":
        exponentials = [torch.exp(a - scores.max()) for a in scores]
        return torch.stack([tau * e / sum(exponentials) for e in exponentials])
    if score == "l2_norm_gelu":
        norm = torch.sqrt(sum(a * a for a in scores))
        return torch.stack([gelu(a * tau / norm) for a in scores])
    if score == "gelu_l2_norm":
        active = [gelu(a) for a in scores]
        norm = torch.sqrt(sum(a * a for a in active))
        return torch.stack([tau * a / norm for a in active])
    raise AssertionError(score)


def default_tau(score: str, num_tokens: int) -> float:
    """sqrt(n), for softmax n."""
    return float(num_tokens) if score == "softmax" else math.sqrt(num_tokens)


def pattention(x: Tensor, keys: Tensor, values: Tensor, score: str, tau: float | Tensor | None = None) -> Tensor:
    """Pattention of every row of x (..., d_in), one row at a time."""
    tau = default_tau(score, len(keys)) if tau is None else tau
    rows = []
    for row in x.reshape(-1, x.shape[-1]):
        scores = torch.stack([torch.dot(row, key) for key in keys])
        weights = score_row(scores, score, tau)
        rows.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
    return torch.stack(rows).reshape(*x.shape[:-1], values.shape[-1])


def rotate(vector: Tensor, position: int, size: int, base: float = 10000.0) -> Tensor:
    """Turn dimension j together with dimension j + size / 2 of one head's vector, as complex numbers."""
    parts, half = list(vector), size // 2
    for j in range(half):
        angle = position * base ** (-2.0 * j / size)
        first, second = vector[j], vector[j + half]
        parts[j] = first * math.cos(angle) - second * math.sin(angle)
        parts[j + half] = second * math.cos(angle) + first * math.sin(angle)
    return torch.stack(parts)


def attention(query: Tensor, key: Tensor, value: Tensor, allowed: list[list[bool]]) -> Tensor:
    """One head of one sequence, (length, d) each; `allowed[t][s]`: may query t look at key s?"""
    outputs = []
    for t in range(len(query)):
        seen = [s for s in range(len(key)) if allowed[t][s]]
        scores = torch.stack([torch.dot(query[t], key[s]) / math.sqrt(query.shape[-1]) for s in seen])
        exponentials = torch.exp(scores - scores.max())
        outputs.append(sum(e / exponentials.sum() * value[s] for e, s in zip(exponentials, seen, strict=True)))
    return torch.stack(outputs)


def causal(length: int) -> list[list[bool]]:
    """Every token may look at itself and at earlier ones."""
    return [[s <= t for s in range(length)] for t in range(length)]


def layer_norm(x: Tensor, weight: Tensor | float = 1.0, bias: Tensor | float = 0.0, eps: float = 1e-5) -> Tensor:
    """Zero mean and unit variance over the last axis."""
    centered = x - x.mean(-1, keepdim=True)
    return centered / torch.sqrt((centered * centered).mean(-1, keepdim=True) + eps) * weight + bias


def tokenformer(tensors: Mapping[str, Tensor], ids: Tensor, config: Mapping) -> Tensor:
    """Logits of a whole TokenFormer language model, from a checkpoint in the released naming."""
    layers, heads, score = config["num_layers"], config["num_attention_heads"], config["norm_activation_type"]
    table = tensors["sequential.0.word_embeddings.weight"]
    head_size = table.shape[1] // heads
    rotary = int(head_size * config["rotary_pct"])

    def project(x: Tensor, layer: int, site: str) -> Tensor:
        name = f"sequential.{layer + 2}.{site}"
        return pattention(x, tensors[f"{name}.key_param_tokens"], tensors[f"{name}.value_param_tokens"], score)

    logits = []
    for row in ids:
        x = table[row]
        for layer in range(layers):
            normed = layer_norm(x)
            q, k, v = (project(normed, layer, f"attention.{site}") for site in ("query", "key", "value"))
            mixed = []
            for head in range(heads):
                part = slice(head * head_size, (head + 1) * head_size)
                turned_q = torch.stack([rotate(vector, t, rotary) for t, vector in enumerate(q[:, part])])
                turned_k = torch.stack([rotate(vector, t, rotary) for t, vector in enumerate(k[:, part])])
                mixed.append(attention(turned_q, turned_k, v[:, part], causal(len(row))))
            x = x + project(torch.cat(mixed, dim=-1), layer, "attention.proj")
            x = x + project(layer_norm(x), layer, "mlp")
        norm = f"sequential.{layers + 3}.norm"
        logits.append(layer_norm(x, tensors[f"{norm}.weight"], tensors[f"{norm}.bias"]) @ table.T)
    return torch.stack(logits)


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Mean over positions of -log p(next token), in nats."""
    losses = [
        torch.logsumexp(logits[b, t], dim=-1) - logits[b, t, ids[b, t + 1]]
        for b in range(ids.shape[0])
        for t in range(ids.shape[1] - 1)
    ]
    return torch.stack(losses).mean()
