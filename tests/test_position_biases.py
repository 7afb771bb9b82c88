"""xPos, sinusoidal positions, T5's relative bias and ALiBi against their definitions, written the slow way."""

import math

import pytest
import torch
from transformers.models.bloom.modeling_bloom import _get_alibi_slopes
from transformers.models.t5.modeling_t5 import T5Attention

from gnomon.nn.biases import Alibi, RelativeBias, add_to_mask, alibi_slopes, relative_buckets
from gnomon.nn.positions import sinusoidal_positions, xpos_queries_and_keys, xpos_rotation


@pytest.mark.parametrize("is_bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 20), (16, 33)])
def test_buckets_are_t5_s(is_bidirectional: bool, num_buckets: int, max_distance: int) -> None:
    """Every distance from -300 to 300 falls into the bucket that transformers' T5 puts it into."""
    distances = torch.arange(-300, 301)
    ours = relative_buckets(
        distances, is_bidirectional=is_bidirectional, num_buckets=num_buckets, max_distance=max_distance
    )
    theirs = T5Attention._relative_position_bucket(distances, is_bidirectional, num_buckets, max_distance)
    assert torch.equal(ours, theirs)
    assert ours.max() < num_buckets


def test_the_relative_bias_reads_its_table_by_head_and_bucket() -> None:
    """b[head, bucket(key - query)], for each row's own positions."""
    bias = RelativeBias(3, num_buckets=8, max_distance=20)
    queries, keys = torch.tensor([[4, 5], [0, 9]]), torch.tensor([[0, 3, 5], [1, 2, 3]])
    found = bias(queries, keys)
    assert found.shape == (2, 3, 2, 3)
    for row, head, q, k in ((0, 1, 0, 2), (1, 2, 1, 0)):
        bucket = relative_buckets(keys[row, k] - queries[row, q], is_bidirectional=True, num_buckets=8, max_distance=20)
        assert found[row, head, q, k] == bias.weight[bucket, head]


@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 6, 8, 12, 16])
def test_alibi_s_slopes_are_the_paper_s_for_any_number_of_heads(num_heads: int) -> None:
    """As in transformers' Bloom, powers of two or not; the bias falls with the distance on both sides."""
    theirs = _get_alibi_slopes(num_heads, torch.device("cpu"))
    torch.testing.assert_close(torch.tensor(alibi_slopes(num_heads)), theirs, rtol=1e-6, atol=0)
    bias = Alibi(num_heads)(torch.tensor([[2]]), torch.tensor([[0, 1, 2, 3]]))
    slope = alibi_slopes(num_heads)[0]
    torch.testing.assert_close(bias[0, 0, 0], -slope * torch.tensor([2.0, 1.0, 0.0, 1.0]))


def test_a_bias_joins_either_kind_of_mask() -> None:
    """False and large negative numbers stay out of reach, whatever is added to them."""
    bias, lowest = torch.full((1, 2, 1, 3), 0.5), torch.finfo(torch.float32).min
    for mask in (torch.tensor([[[[True, True, False]]]]), torch.tensor([[[[0.0, 0.0, lowest]]]])):
        joined = add_to_mask(mask, bias, torch.float32)
        assert joined.shape == (1, 2, 1, 3)
        assert joined[0, :, 0, :2].eq(0.5).all()
        assert joined[0, :, 0, 2].le(lowest + 1).all()
    lower = add_to_mask(torch.tensor([[[[lowest]]]]), torch.full((1, 1, 1, 1), -3.0e38), torch.float32)
    assert lower.isfinite().all()


@torch.no_grad()
def test_xpos_scores_depend_on_the_distance_alone() -> None:
    """Shifting both positions changes no score; the score of equal vectors falls with the distance."""
    query, key = torch.randn(2, 1, 1, 6, 16, generator=torch.Generator().manual_seed(0)).double()

    def scores(start: int):
        rotation = xpos_rotation(torch.arange(start, start + 6).unsqueeze(0), head_size=16)
        turned, other = xpos_queries_and_keys(query, key, rotation)
        return turned @ other.transpose(-1, -2)

    torch.testing.assert_close(scores(0), scores(700), rtol=1e-4, atol=1e-4)
    rotation = xpos_rotation(torch.arange(6).unsqueeze(0), head_size=16)
    plain = xpos_queries_and_keys(query, key, (rotation[0], rotation[1], torch.ones_like(rotation[2])))
    assert not torch.allclose(plain[0] @ plain[1].transpose(-1, -2), scores(0))


def test_xpos_scales_are_the_formula_s() -> None:
    """((2 i + 0.4 d) / (1.4 d))^(t / 512) on both dimensions of pair i, and angles t 10000^(-2 i / d)."""
    cos, sin, scale = xpos_rotation(torch.tensor([[3, 200]]), head_size=8)
    for place, t in enumerate((3, 200)):
        for i in range(4):
            expected = ((2 * i + 3.2) / 11.2) ** (t / 512)
            assert scale[0, place, 2 * i] == scale[0, place, 2 * i + 1] == pytest.approx(expected, rel=1e-6)
            angle = t * 10000 ** (-2 * i / 8)
            assert cos[0, place, 2 * i].item() == pytest.approx(math.cos(angle), abs=1e-4)
            assert sin[0, place, 2 * i + 1].item() == pytest.approx(math.sin(angle), abs=1e-4)


def test_sinusoidal_positions_are_sines_then_cosines() -> None:
    """sin(t w_j) in the first half and cos(t w_j) in the second, w_j from 1 to 1/10000."""
    found = sinusoidal_positions(torch.tensor([[0, 7]]), 10)
    assert found[0, 0].tolist() == [0.0] * 5 + [1.0] * 5
    for j in range(5):
        angle = 7 * 10000 ** (-j / 4)
        assert found[0, 1, j].item() == pytest.approx(math.sin(angle), abs=1e-5)
        assert found[0, 1, 5 + j].item() == pytest.approx(math.cos(angle), abs=1e-5)
