"""Rotary positions: against complex numbers one at a time, and the invariants they are used for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from gnomon.nn.positions import rotary_angles, rotate, rotate_queries_and_keys
from samples import language_model, random_ids

DOUBLE = torch.float64


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


@pytest.mark.parametrize(("head", "size"), [(8, 8), (8, 2), (10, 6), (2, 2)])
@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_rotation_equals_complex_multiplication_pair_by_pair(head: int, size: int, base: float) -> None:
    """Dimension j turns with dimension j + r/2 by t base^(-2j/r); the others stay, for every row's own positions."""
    x = draw(2, 3, 4, head).requires_grad_()
    positions = torch.tensor([[0, 1, 5, 40], [7, 3, 3, 0]])
    found = rotate(x, *rotary_angles(positions, rotary_size=size, base=base))
    expected = torch.stack(
        [
            torch.stack(
                [torch.stack([reference.rotate(x[b, h, t], int(positions[b, t]), size, base) for t in range(4)])
                 for h in range(3)]
            )
            for b in range(2)
        ]
    )  # fmt: skip
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    cotangent = draw(2, 3, 4, head, seed=1)
    ours, naive = (torch.autograd.grad(y, x, cotangent)[0] for y in (found, expected))
    torch.testing.assert_close(ours, naive, rtol=1e-5, atol=1e-5)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(shift=st.integers(0, 500), first=st.integers(0, 500), second=st.integers(0, 500))
def test_products_depend_on_the_distance_of_positions_alone(shift: int, first: int, second: int) -> None:
    """<R_s q, R_t k> = <R_(s+c) q, R_(t+c) k>, and at equal positions it is <q, k>."""
    query, key = draw(1, 1, 1, 8), draw(1, 1, 1, 8, seed=1)

    def product(s: int, t: int) -> torch.Tensor:
        turned_q = rotate(query, *rotary_angles(torch.tensor([[s]]), rotary_size=8))
        turned_k = rotate(key, *rotary_angles(torch.tensor([[t]]), rotary_size=8))
        return (turned_q * turned_k).sum()

    torch.testing.assert_close(product(first, second), product(first + shift, second + shift), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(product(first, first), (query * key).sum(), rtol=1e-5, atol=1e-5)


def test_a_rotation_keeps_lengths_and_position_zero_keeps_everything() -> None:
    """Turning changes no vector's length, and nothing at position 0."""
    x = draw(1, 2, 3, 8)
    turned = rotate(x, *rotary_angles(torch.tensor([[0, 9, 99]]), rotary_size=6))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=1e-6)
    assert torch.equal(turned[:, :, 0], x[:, :, 0])
    assert not torch.allclose(turned[:, :, 1, :6], x[:, :, 1, :6], atol=1e-2)


def test_one_row_of_positions_serves_the_whole_batch() -> None:
    """Positions of shape (1, length) turn every row alike."""
    x = draw(3, 2, 4, 8)
    one = torch.arange(4)[None]
    shared, each = (rotate(x, *rotary_angles(p, rotary_size=4)) for p in (one, one.expand(3, -1)))
    assert torch.equal(shared, each)


def test_queries_and_keys_turn_alike_and_stay_without_positions() -> None:
    """Both turn by the same angles; with no positions given, both are returned as they are."""
    query, key = draw(1, 4, 3, 8), draw(1, 2, 3, 8, seed=1)
    angles = rotary_angles(torch.arange(3)[None], rotary_size=8)
    turned = rotate_queries_and_keys(query, key, angles)
    assert torch.equal(turned[0], rotate(query, *angles))
    assert torch.equal(turned[1], rotate(key, *angles))
    same = rotate_queries_and_keys(query, key, None)
    assert same[0] is query
    assert same[1] is key


def test_angles_are_float32_whatever_the_model_computes_in() -> None:
    """In bfloat16 a position of 1001 would be 1000: angles are taken in float32 and rounded last."""
    cos, sin = rotary_angles(torch.tensor([[1000, 1001]]), rotary_size=2)
    assert cos.dtype == sin.dtype == torch.float32
    assert (cos[0, 0] - cos[0, 1]).abs().max() > 0.1
    x = draw(1, 1, 2, 4).bfloat16()
    assert rotate(x, cos, sin).dtype == torch.bfloat16


def test_a_shift_of_all_positions_changes_no_logit_and_a_shuffle_does() -> None:
    """A model sees distances: positions 100, 101, ... give the logits of 0, 1, ..., shuffled ones others."""
    model, ids = language_model(), random_ids(2, 9)
    positions = torch.arange(9).expand(2, -1)
    with torch.no_grad():
        plain, shifted, shuffled = (
            model(input_ids=ids, position_ids=p, attention_mask=torch.ones_like(ids)).logits
            for p in (positions, positions + 100, positions.flip(-1))
        )
    torch.testing.assert_close(shifted, plain, rtol=1e-3, atol=1e-3)
    assert (shuffled - plain).abs().max() > 0.1


def test_without_rotation_one_layer_sees_its_context_as_a_set() -> None:
    """positions: none in one layer gives a last logit that ignores the order of earlier tokens; rotary does not."""
    ids = random_ids(1, 9)
    shuffled = torch.cat((ids[:, [4, 2, 7, 0, 1, 6, 3, 5]], ids[:, 8:]), dim=1)
    changes = []
    for positions in ("none", "rotary"):
        model = language_model(num_hidden_layers=1, positions=positions)
        with torch.no_grad():
            changes.append((model(input_ids=ids).logits - model(input_ids=shuffled).logits)[0, -1].abs().max())
    assert changes[0] < 1e-5
    assert changes[1] > 1e-2
