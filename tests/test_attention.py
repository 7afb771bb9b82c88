"""Token-token attention: against one head at a time, with every mask, sharing of heads and inner function."""

import math

import pytest
import torch
from torch import nn

import reference
from gnomon.nn import Attention, Linear, dot_product_attention
from samples import language_model, random_ids

DOUBLE = torch.float64


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def heads(batch: int = 2, queries: int = 4, shared: int = 2, length: int = 5, source: int = 5, size: int = 3):
    """Queries, keys and values."""
    return (
        draw(batch, queries, length, size),
        draw(batch, shared, source, size, seed=1),
        draw(batch, shared, source, size, seed=2),
    )


def naive(query, key, value, allowed):
    """Every head of every row by the loop; `allowed[b]` as the loop wants it."""
    groups = query.shape[1] // key.shape[1]
    rows = [
        torch.stack(
            [reference.attention(q[h], k[h // groups], v[h // groups], allowed[b]) for h in range(query.shape[1])], 1
        )
        for b, (q, k, v) in enumerate(zip(query, key, value, strict=True))
    ]
    return torch.stack(rows)


def module(causal: bool) -> nn.Module:
    layer = nn.Module()
    layer.is_causal = causal
    return layer.eval()


@pytest.mark.parametrize("shared", [1, 2, 4])
@pytest.mark.parametrize("kind", ["causal", "all", "boolean mask", "additive mask"])
def test_the_inner_function_equals_a_loop_over_heads_and_queries(kind: str, shared: int) -> None:
    """Outputs and gradients agree for grouped queries and for each way of saying who may look where."""
    leaves = [t.requires_grad_() for t in heads(shared=shared)]
    allowed = [[[True] * 5] * 5] * 2 if kind == "all" else [reference.causal(5)] * 2
    mask = None
    if "mask" in kind:
        allowed = [[[s <= t and s >= b for s in range(5)] for t in range(5)] for b in range(2)]
        allowed[1][0][0] = True  # every query sees something
        mask = torch.tensor(allowed)[:, None]
        if kind == "additive mask":
            mask = torch.zeros(2, 1, 5, 5, dtype=DOUBLE).masked_fill(~mask, torch.finfo(DOUBLE).min)
    found, weights = dot_product_attention(module(kind == "causal"), *leaves, mask, scaling=1 / math.sqrt(3))
    expected = naive(*leaves, allowed)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 5, dtype=DOUBLE), rtol=1e-9, atol=1e-9)
    cotangent = draw(2, 5, 4, 3, seed=3)
    for ours, theirs in zip(
        torch.autograd.grad(found, leaves, cotangent), torch.autograd.grad(expected, leaves, cotangent), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_without_a_mask_queries_are_the_last_positions_of_the_source() -> None:
    """Three queries over five sources see two earlier tokens: causality does not depend on equal lengths."""
    query, key, value = heads(length=3)
    found, _ = dot_product_attention(module(True), query, key, value, None, scaling=1 / math.sqrt(3))
    allowed = [[[s <= t + 2 for s in range(5)] for t in range(3)]] * 2
    torch.testing.assert_close(found, naive(query, key, value, allowed), rtol=1e-9, atol=1e-9)


def test_a_query_that_may_see_nothing_sees_everything_evenly() -> None:
    """A fully masked row is finite: the mean of all values, not NaN."""
    query, key, value = heads(shared=4)
    mask = torch.zeros(2, 1, 5, 5, dtype=torch.bool)
    found, _ = dot_product_attention(module(False), query, key, value, mask, scaling=1.0)
    expected = value.mean(2, keepdim=True).transpose(1, 2).expand(-1, 5, -1, -1)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_dropout_of_attention_weights_acts_in_training_alone() -> None:
    """In training about half of the weights at dropout 0.5 are zero, the mean unchanged; in evaluation none is."""
    torch.manual_seed(0)
    query, key, value = heads(length=40, source=40)
    _, kept = dot_product_attention(module(False), query, key, value, None, scaling=1.0, dropout=0.5)
    _, dropped = dot_product_attention(module(False).train(), query, key, value, None, scaling=1.0, dropout=0.5)
    assert (kept > 0).all()
    assert abs((dropped == 0).double().mean() - 0.5) < 0.02
    assert abs(dropped.sum(-1).mean() - 1.0) < 0.05


def build(num_heads: int = 4, shared: int = 2, **arguments) -> Attention:
    torch.manual_seed(0)
    width, size = 12, 3
    return Attention(
        query=Linear(width, num_heads * size, std=0.5),
        key=Linear(width, shared * size, std=0.5),
        value=Linear(width, shared * size, std=0.5),
        output=Linear(num_heads * size, width, std=0.5),
        num_heads=num_heads,
        num_key_value_heads=shared,
        head_size=size,
        **arguments,
    ).double()


def test_the_layer_equals_projections_heads_and_a_loop() -> None:
    """The whole layer is W_O concat_h softmax(Q_h K_h^T / sqrt(d_h)) V_h, queries sharing keys in groups."""
    layer, x = build(), draw(2, 5, 12).requires_grad_()

    def split(y: torch.Tensor, count: int) -> torch.Tensor:
        return torch.stack([y[..., 3 * h : 3 * h + 3] for h in range(count)], dim=1)

    q, k, v = split(layer.query(x), 4), split(layer.key(x), 2), split(layer.value(x), 2)
    mixed = naive(q, k, v, [reference.causal(5)] * 2)
    expected = layer.output(torch.cat([mixed[:, :, h] for h in range(4)], dim=-1))
    found, _ = layer(x)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    parameters = (x, *layer.parameters())
    for ours, theirs in zip(
        torch.autograd.grad(found.square().sum(), parameters),
        torch.autograd.grad(expected.square().sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_the_slots_are_used_where_they_stand() -> None:
    """An inner norm acts before the output projection, and another inner function replaces the attention."""

    def first_value(module, query, key, value, mask, *, scaling, dropout, **_):
        return value.repeat_interleave(2, dim=1)[:, :, :1].expand_as(query).transpose(1, 2), None

    x = draw(2, 5, 12)
    plain, normed = build(attend=first_value), build(attend=first_value, inner_norm=nn.LayerNorm(12))
    inner = plain.value(x)[:, :1].unflatten(-1, (2, 3)).repeat_interleave(2, dim=2).flatten(-2).expand(-1, 5, -1)
    torch.testing.assert_close(plain(x)[0], plain.output(inner))
    torch.testing.assert_close(normed(x)[0], plain.output(reference.layer_norm(inner)))


def test_key_value_heads_that_do_not_divide_the_heads_are_refused() -> None:
    """Three key-value heads cannot serve four heads."""
    with pytest.raises(ValueError, match="must divide the 4 heads; got 3"):
        build(shared=3)


@pytest.mark.parametrize("variant", ["l2_norm_gelu", "grouped queries", "gated", "narrow heads"])
def test_the_implementation_can_be_changed_on_a_finished_model(variant: str) -> None:
    """eager and sdpa give the same logits and gradients, with padding too, and the switch is really made."""
    model, ids = language_model(variant), random_ids(3, 9)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[1, 4] = -100  # its predecessor is padding
    results = []
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        output = model(input_ids=ids, attention_mask=mask, labels=labels)
        output.loss.backward()
        results.append((output.logits[mask == 1], [p.grad.clone() for p in model.parameters()]))
        attentions = implementation == "eager" and model(input_ids=ids, output_attentions=True).attentions
        assert not attentions or attentions[0].shape == (3, 4, 9, 9)
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-4, atol=1e-4)
    for eager, sdpa in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(eager, sdpa, rtol=1e-3, atol=1e-4)
