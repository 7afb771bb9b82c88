"""Decoding CTC, error rates, retrieval and the naive baselines, against what is worked out by hand or brute force."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from gnomon.data.vision import load_images
from gnomon.evaluation.baselines import (
    majority_accuracy,
    nearest,
    nearest_centroid_accuracy,
    nearest_neighbor_accuracy,
)
from gnomon.evaluation.classification import evaluate_classifier
from gnomon.evaluation.retrieval import evaluate_retrieval, recall_at, score_retrieval
from gnomon.evaluation.speech import beam_decode, empty_transcript_rates, error_rates, evaluate_ctc, greedy_decode

BLANK = 2


def collapse(path):
    """The labels of an alignment: repeats joined, then blanks dropped."""
    return tuple(token for token, _ in itertools.groupby(path) if token != BLANK)


def best_labels(log_probabilities):
    """The likeliest labels of all, by adding up every alignment."""
    totals = {}
    frames, tokens = log_probabilities.shape
    for path in itertools.product(range(tokens), repeat=frames):
        score = sum(log_probabilities[frame, token].item() for frame, token in enumerate(path))
        totals[collapse(path)] = totals.get(collapse(path), 0.0) + np.exp(score)
    return list(max(totals, key=totals.get))


def test_wide_beam_finds_the_likeliest_labels_of_all():
    """With room for every prefix, the beam gives what adding up all 3^5 alignments gives; a greedy path often not."""
    generator = torch.Generator().manual_seed(0)
    greedy_differs = 0
    for _ in range(40):
        scores = torch.log_softmax(1.5 * torch.randn(5, 3, generator=generator), dim=-1)
        best = best_labels(scores)
        assert beam_decode(scores, BLANK, beam_size=200) == best
        greedy_differs += greedy_decode(scores[None], [5], BLANK)[0] != best
    assert greedy_differs > 0


def test_greedy_decoding_joins_repeats_across_no_blank_and_stops_at_the_length():
    """`a a blank a b b` is `aab`; frames after a row's length are not heard."""
    path = [0, 0, BLANK, 0, 1, 1, 0]
    logits = nn.functional.one_hot(torch.tensor([path, path]), 3).float()
    assert greedy_decode(logits, [6, 3], BLANK) == [[0, 0, 1], [0]]
    assert beam_decode(torch.log_softmax(20 * logits[0, :6], -1), BLANK) == [0, 0, 1]
    with pytest.raises(ValueError, match="at least 1 prefix"):
        beam_decode(logits[0], BLANK, beam_size=0)


def test_error_rates_are_edits_over_everything_said():
    """One wrong word of three and 2 wrong characters of 14; hearing nothing is an error rate of 1."""
    rates = error_rates(["press two", "hello"], ["press too", "hell"])
    assert rates.word_error_rate == pytest.approx(2 / 3)
    assert rates.character_error_rate == pytest.approx(2 / 14)
    empty = empty_transcript_rates(["press two", "hello"])
    assert (empty.word_error_rate, empty.character_error_rate) == (1.0, 1.0)
    with pytest.raises(ValueError, match="a reference is empty"):
        error_rates([""], ["a"])
    with pytest.raises(ValueError, match="2 references cannot be compared with 1"):
        error_rates(["a", "b"], ["a"])


class Spelling(nn.Module):
    """Gives the logits that the features spell out, of half as many frames."""

    device = torch.device("cpu")

    def forward(self, input_features, attention_mask):
        return SimpleNamespace(logits=10 * input_features[:, ::2, :3])


class Letters:
    """A tokenizer of two letters and a blank."""

    pad_token_id = BLANK

    def decode(self, ids, group_tokens):
        return "".join("ab"[token] for token in ids)


class SpokenRows(list):
    """Rows with texts and lengths."""

    texts = ("ab", "a")
    lengths = (8, 4)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_recognizer_is_scored_on_real_frames_in_the_order_of_the_rows(beam_size):
    """Rows of different lengths are padded and sorted, and their transcripts come back in order."""
    features = [
        nn.functional.one_hot(torch.tensor(path), 4).float() for path in ([0, 0, 2, 2, 1, 1, 1, 1], [0, 0, 2, 2])
    ]
    labels = [torch.tensor([0, 1]), torch.tensor([1])]
    rows = SpokenRows(
        {"input_features": feature, "attention_mask": torch.ones(len(feature), dtype=torch.long), "labels": label}
        for feature, label in zip(features, labels, strict=True)
    )

    def collate(batch):
        pad = nn.utils.rnn.pad_sequence
        # Padded with a token, not with zeros, so that frames heard beyond the length would show.
        return {
            "input_features": pad([row["input_features"] for row in batch], batch_first=True, padding_value=1.0),
            "attention_mask": pad([row["attention_mask"] for row in batch], batch_first=True),
            "labels": pad([row["labels"] for row in batch], batch_first=True, padding_value=-100),
        }

    score = evaluate_ctc(
        Spelling(),
        rows,
        collate=collate,
        tokenizer=Letters(),
        output_length=lambda frames: -(-frames // 2),
        beam_size=beam_size,
    )
    assert score.transcripts == ("ab", "a")
    assert (score.word_error_rate, score.character_error_rate, score.clips) == (0, 0, 2)
    # Of the second row the label `b` was given, so two frames of log-probability about -10 each cannot be avoided.
    assert 2 < score.loss < 10
    assert "transcripts" not in score.to_dict()


def test_recall_counts_a_right_answer_only_before_all_wrong_ones():
    """A constant similarity finds nothing at 1; a perfect one finds everything."""
    relevant = np.eye(6, dtype=bool)
    assert recall_at(np.zeros((6, 6)), relevant, (1, 5, 6)) == {1: 0.0, 5: 0.0, 6: 1.0}
    assert recall_at(np.eye(6), relevant, (1,)) == {1: 1.0}
    assert recall_at(np.full((6, 6), np.nan), relevant, (1,)) == {1: 0.0}
    with pytest.raises(ValueError, match="must have a relevant candidate"):
        recall_at(np.zeros((2, 2)), np.zeros((2, 2), dtype=bool))


def test_retrieval_uses_angles_and_lets_several_images_share_a_text():
    """Lengths of embeddings do not count; a text is found if any of its images comes first."""
    images = np.array([[1.0, 0.1], [100.0, 20.0], [0.1, 1.0]])
    words = np.array([[5.0, 0.0], [0.0, 0.01]])
    score = score_retrieval(images, words, [0, 0, 1], (1,))
    assert (score.image_to_text, score.text_to_image) == ({1: 1.0}, {1: 1.0})
    assert (score.images, score.texts, score.chance) == (3, 2, 0.5)
    assert score_retrieval(images, words, [1, 1, 0], (1,)).image_to_text == {1: 0.0}


class Towers(nn.Module):
    """Embeds an image by its first two pixels, and a text by its first two ids."""

    device = torch.device("cpu")

    def forward(self, pixel_values, input_ids):
        images, words = pixel_values.flatten(1)[:, :2], input_ids[:, :2].float()
        return SimpleNamespace(image_embeds=images, text_embeds=words, logits_per_image=50 * images @ words.T)


class Pairs(list):
    """Rows with texts."""

    texts = ("x", "y", "x")


def test_two_towers_are_scored_over_different_texts():
    """Three images of two texts: all are found, and equal texts in a batch are equally right for the loss."""
    points = ([1.0, 0.0], [0.0, 1.0], [1.0, 0.0])
    rows = Pairs(
        {"pixel_values": torch.tensor(point).view(1, 1, 2), "input_ids": torch.tensor(point).long()} for point in points
    )

    def collate(batch):
        return {key: torch.stack([row[key] for row in batch]) for key in batch[0]}

    score = evaluate_retrieval(Towers(), rows, collate=collate, ranks=(1,))
    assert (score.recall_at_1, score.text_to_image[1], score.texts, score.images) == (1.0, 1.0, 2, 3)
    # Twice the choice is between two images or texts that are equally right: ln 2 nats; once there is none.
    assert score.loss == pytest.approx(2 / 3 * np.log(2), abs=1e-4)
    assert evaluate_retrieval(Towers(), rows, collate=collate, ranks=(1,), batch_size=1).loss == pytest.approx(0)


def test_baselines_of_the_digits_are_the_published_ones():
    """On the last fifth of the digits: nearest centroid 85.0%, nearest neighbor 95.6%, the commonest class 10%."""
    splits = load_images(name="digits")
    sides = (splits.train.pixels(), splits.train.labels, splits.validation.pixels(), splits.validation.labels)
    assert nearest_centroid_accuracy(*sides) == 306 / 360
    assert nearest_neighbor_accuracy(*sides) == 344 / 360
    assert majority_accuracy(splits.train.labels, splits.validation.labels) == pytest.approx(0.1, abs=0.01)


def test_nearest_rows_are_those_of_brute_force():
    """Batches or not, the nearest point is the one with the least squared distance."""
    draw = np.random.default_rng(0)
    points, rows = draw.normal(size=(30, 4)), draw.normal(size=(17, 4))
    brute = ((rows[:, None] - points[None]) ** 2).sum(-1).argmin(1)
    assert (nearest(points, rows) == brute).all()
    assert (nearest(points, rows, batch_size=5) == brute).all()


class FirstPixel(nn.Module):
    """Answers class 1 where the first pixel is dark."""

    device = torch.device("cpu")

    def forward(self, pixel_values):
        dark = (pixel_values[:, 0, 0, 0] < 0).float()
        return SimpleNamespace(logits=torch.stack([1 - dark, dark], dim=1))


def test_image_rows_are_scored_by_the_classifier_evaluation(tmp_path):
    """The evaluation of classifiers takes rows of images: 3 of 4 right."""
    images = np.array([0, 0, 255, 255], dtype=np.uint8)[:, None, None].repeat(4, 1).repeat(4, 2)
    labels = np.array([1, 0, 0, 0])
    arrays = {
        f"{side}_{part}": value
        for side in ("train", "validation")
        for part, value in (("images", images), ("labels", labels))
    }
    np.savez(tmp_path / "a.npz", classes=np.array(["light", "dark"]), **arrays)
    splits = load_images(source=tmp_path / "a.npz")
    score = evaluate_classifier(FirstPixel(), splits.validation, collate=splits.collate())
    assert (score.accuracy, score.sequences) == (0.75, 4)
