"""Hidden tokens: the shares of BERT, marks left alone, and the same choice whenever the same window comes again."""

import numpy as np
import pytest
import torch

from gnomon.data.masking import MaskableText, MaskedText, mask_id_of, mask_tokens
from gnomon.data.packing import pack
from gnomon.data.tokenizers import MASK, build_tokenizer
from gnomon.training.optimization import EpochSampler, batches_of_equal_length

TEXTS = {"one": "the quick brown fox", "two": "jumps over", "three": "the lazy dogs and sleeps until morning"}


@pytest.fixture(scope="module")
def tokenizer():
    """A byte tokenizer with a mask."""
    return build_tokenizer({"kind": "byte"}, special_tokens={"mask_token": MASK})


def test_tokens_are_hidden_replaced_and_kept_in_their_shares() -> None:
    """Of 40,000 tokens 15% are chosen; of these 80% become the mask, 10% another token, 10% stay (all within 1%)."""
    ids, everywhere = np.full(40_000, 7), np.ones(40_000, dtype=bool)
    seen, labels = mask_tokens(
        ids,
        everywhere,
        mask_id=1,
        replacements=np.arange(100, 200),
        probability=0.15,
        generator=np.random.default_rng(0),
    )
    chosen = labels != -100
    assert chosen.mean() == pytest.approx(0.15, abs=0.01)
    assert set(labels[chosen]) == {7}
    assert (seen[chosen] == 1).mean() == pytest.approx(0.8, abs=0.02)
    assert (seen[chosen] >= 100).mean() == pytest.approx(0.1, abs=0.02)
    assert (seen[chosen] == 7).mean() == pytest.approx(0.1, abs=0.02)
    assert set(seen[~chosen]) == {7}


def test_every_token_of_the_text_lies_in_one_window_and_marks_are_never_hidden(tokenizer) -> None:
    """The windows' tokens are the text, each once; a window begins with a mark, and no mark is a label."""
    windows = MaskableText(pack(TEXTS, tokenizer, 8), tokenizer.all_special_ids)
    text = []
    for index in range(len(windows)):
        row = windows[index]
        assert row["input_ids"][0] == tokenizer.bos_token_id
        text += row["input_ids"][row["maskable"]].tolist()
    assert bytes(text).decode() == "".join(TEXTS.values())
    assert windows.text_ids.tolist() == text
    masked = MaskedText(windows, tokenizer, 0.9)
    special = torch.tensor(tokenizer.all_special_ids)
    for index in range(len(masked)):
        row = masked[index]
        assert not torch.isin(row["labels"], special).any()
        assert (row["labels"] != -100).any()
        marks = torch.isin(windows[index]["input_ids"], special)
        assert torch.equal(row["input_ids"][marks], windows[index]["input_ids"][marks])


def test_masks_depend_on_seed_stage_epoch_and_window_alone(tokenizer) -> None:
    """The same key gives the same masks, whatever was drawn in between; another epoch, stage or seed gives others."""
    masked = MaskedText(MaskableText(pack(TEXTS, tokenizer, 32), tokenizer.all_special_ids), tokenizer, 0.5)
    seen = {}
    for key in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, 0)]:
        torch.rand(3), np.random.default_rng().random(3)
        EpochSampler(masked, key[0], key[1]).set_epoch(key[2])
        labels = masked[1]["labels"]
        assert torch.equal(seen.setdefault(key, labels), labels)
    assert len({tuple(labels.tolist()) for labels in seen.values()}) == 4


def test_a_tokenizer_without_a_mask_is_refused() -> None:
    """The sentence names the token that is missing and how to get one."""
    with pytest.raises(ValueError, match=r"needs a tokenizer with a mask_token.*tokenizer: \{kind: bpe\}"):
        mask_id_of(build_tokenizer({"kind": "byte"}))


def test_a_vocabulary_with_a_mask_has_the_size_that_was_asked_for() -> None:
    """The mask is one of the ids that `vocab_size` counts."""
    texts = {"a": "the cat sat on the mat and the dog sat on the log " * 20}
    tokenizer = build_tokenizer({"kind": "bpe", "vocab_size": 272}, texts, {"mask_token": MASK})
    assert len(tokenizer) == 272
    assert tokenizer.mask_token_id < 272


def test_batches_of_equal_length_lose_and_repeat_nothing() -> None:
    """Every sequence comes once, batches hold neighbors in length, and another epoch has another order."""
    lengths = np.random.default_rng(0).integers(1, 50, size=203)

    class Rows(list):
        """Anything with a length of its own and lengths of its rows."""

    rows = Rows(range(203))
    rows.lengths = lengths
    sampler = EpochSampler(rows, 0, 0, batch_size=8)
    first = list(sampler)
    assert sorted(first) == list(range(203))
    spread = [np.ptp(lengths[first[start : start + 8]]) for start in range(0, 200, 8)]
    assert np.mean(spread) < 5 < np.mean([np.ptp(lengths[start : start + 8]) for start in range(0, 200, 8)])
    assert list(sampler) == first
    sampler.set_epoch(1)
    assert list(sampler) != first
    order = batches_of_equal_length(np.arange(5), np.array([3, 1, 2, 3, 1]), 2, 2, np.random.default_rng(0))
    assert sorted(order.tolist()) == [0, 1, 2, 3, 4]
