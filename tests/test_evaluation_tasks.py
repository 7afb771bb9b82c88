"""Scores of masked models, classifiers and translations against naive references and known answers."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gnomon
from gnomon.data.classification import LabeledText, collate_labeled
from gnomon.data.masking import MaskableText
from gnomon.data.packing import pack
from gnomon.data.tokenizers import MASK, build_tokenizer
from gnomon.data.translation import SentencePairs, collate_pairs
from gnomon.evaluation.classification import evaluate_classifier, macro_f1
from gnomon.evaluation.masked import evaluate_masked_language_model
from gnomon.evaluation.translation import corpus_scores, evaluate_translation
from gnomon.training.tasks import find_task
from samples import build
from tiny_tasks import ENCODER, PAIR

TEXTS = {"one": "a rose is a rose", "two": "it is what it is and more"}


@pytest.fixture(scope="module")
def tokenizer():
    """A byte tokenizer with a mask."""
    return build_tokenizer({"kind": "byte"}, special_tokens={"mask_token": MASK})


@pytest.fixture(scope="module")
def windows(tokenizer):
    """A short text in windows of 12."""
    return MaskableText(pack(TEXTS, tokenizer, 12, allow_short=True), tokenizer.all_special_ids)


@pytest.fixture(scope="module")
def masked_model(tokenizer):
    """A tiny encoder with weights large enough that context matters."""
    return build(gnomon.GnomonForMaskedLM, {**ENCODER, "vocab_size": len(tokenizer)})


@pytest.mark.parametrize("stride", [3, 12])
def test_pseudo_perplexity_hides_every_token_once(stride: int, tokenizer, windows, masked_model) -> None:
    """The loss is that of a loop which hides each window's n-th tokens by hand, and at full stride one at a time."""
    nats, right, count = 0.0, 0, 0
    for index in range(len(windows)):
        row = windows[index]
        places = row["maskable"].nonzero().flatten()
        for first in range(stride):
            for place in places[first::stride]:
                seen = row["input_ids"].clone()
                seen[places[first::stride]] = tokenizer.mask_token_id
                with torch.no_grad():
                    logits = masked_model(input_ids=seen[None]).logits[0, place]
                nats += float(F.cross_entropy(logits, row["input_ids"][place]))
                right += int(logits.argmax() == row["input_ids"][place])
                count += 1
    for batch_size in (1, 4):
        score = evaluate_masked_language_model(
            masked_model, windows, mask_token_id=tokenizer.mask_token_id, stride=stride, batch_size=batch_size
        )
        assert score.tokens == count == sum(map(len, TEXTS.values()))
        assert score.loss == pytest.approx(nats / count, rel=1e-5)
        assert score.pseudo_perplexity == pytest.approx(math.exp(nats / count), rel=1e-5)
        assert score.accuracy == right / count


def test_a_masked_evaluation_leaves_the_model_as_it_was(tokenizer, windows, masked_model) -> None:
    """Modes come back, the head runs everywhere again, and bad arguments get a sentence."""
    masked_model.train()
    masked_model.model.layers[0].eval()
    options = {"mask_token_id": tokenizer.mask_token_id}
    evaluate_masked_language_model(masked_model, windows, **options)
    assert masked_model.training
    assert not masked_model.model.layers[0].training
    masked_model.eval()
    assert masked_model(input_ids=torch.tensor([[1, 2, 3]])).logits.shape[:2] == (1, 3)
    with pytest.raises(ValueError, match="stride of hidden tokens must be at least 2"):
        evaluate_masked_language_model(masked_model, windows, stride=1, **options)
    small = build(gnomon.GnomonForMaskedLM, {**ENCODER, "vocab_size": 40})
    with pytest.raises(ValueError, match="outside the model's vocabulary of 40"):
        evaluate_masked_language_model(small, windows, **options)


def test_unigrams_are_the_floor_of_a_masked_model(windows) -> None:
    """The baseline is the cross-entropy of the training side's frequencies, here of the text with itself."""
    floor = find_task("masked-language-modeling").baselines(windows, windows)["unigram"]
    _, counts = np.unique(windows.text_ids, return_counts=True)
    shares = counts / counts.sum()
    assert floor["loss"] == pytest.approx(-(shares * np.log(shares)).sum(), rel=0.15)
    assert floor["accuracy"] == counts.max() / counts.sum()


class _Answers(nn.Module):
    """A classifier that answers with the first token, so that padding and order can be seen in its score."""

    device = torch.device("cpu")

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=F.one_hot(input_ids[:, 0], 3).float() * attention_mask.sum(1, keepdim=True))


def test_a_classifier_is_scored_whatever_the_batches() -> None:
    """Loss, accuracy and F1 are those of a loop over single rows, at any batch size."""
    firsts, truth = [0, 1, 2, 1, 0, 2, 2], [0, 1, 1, 1, 2, 2, 0]
    rows = LabeledText(
        [np.array([first] + [1] * (place % 4)) for place, first in enumerate(firsts)], np.array(truth), 0, 0
    )
    losses = [
        float(
            F.cross_entropy(
                _Answers()(**{k: v for k, v in collate_labeled([rows[i]]).items() if k != "labels"}).logits,
                rows[i]["labels"][None],
            )
        )
        for i in range(7)
    ]
    for batch_size in (1, 3, 7):
        score = evaluate_classifier(_Answers(), rows, collate=collate_labeled, batch_size=batch_size)
        assert score.loss == pytest.approx(np.mean(losses), rel=1e-6)
        assert score.accuracy == np.mean(np.array(firsts) == np.array(truth))
        assert score.macro_f1 == pytest.approx(np.mean([2 * 1 / (2 + 2), 2 * 2 / (2 + 3), 2 * 1 / (3 + 2)]))
    assert macro_f1(np.array([1, 1]), np.array([1, 1])) == 1.0
    floor = find_task("text-classification").baselines(rows, rows)["majority class"]
    assert floor["accuracy"] == 3 / 7


def pairs_of(texts: list[tuple[str, str]], tokenizer) -> SentencePairs:
    """Pairs as the task encodes them."""
    from gnomon.data.translation import encode_pairs

    return encode_pairs(texts, tokenizer, 24, cut=True)


def test_translations_are_scored_in_their_own_order(tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences are translated by length and compared by place: a model that copies right targets has 100 and 100."""
    texts = [
        ("one two three four", "eins zwei drei vier"),
        ("ab", "aber nur ein Wort"),
        ("five words", "das ist ein Satz"),
    ]
    pairs = pairs_of(texts, tokenizer)
    model = build(gnomon.GnomonForSeq2SeqLM, {**PAIR, "vocab_size": len(tokenizer), "decoder_start_token_id": 256})
    answers = dict(texts)

    def generate(input_ids: torch.Tensor, **options: object) -> torch.Tensor:
        sources = [tokenizer.decode(row, skip_special_tokens=True) for row in input_ids]
        rows = [torch.tensor(list(answers[source].encode())) for source in sources]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id)

    monkeypatch.setattr(model, "generate", generate)
    options = {
        "collate": lambda rows: collate_pairs(rows, pad_token_id=257, start_token_id=256),
        "decode": lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
    }
    scores = [evaluate_translation(model, pairs, batch_size=size, **options) for size in (1, 3)]
    for score in scores:
        assert score.bleu == pytest.approx(100.0)
        assert score.chrf == pytest.approx(100.0)
        assert "version" in score.bleu_signature
    assert scores[0].loss == pytest.approx(scores[1].loss, rel=1e-5)
    floor = find_task("translation").baselines(pairs, pairs)["copying the source"]
    assert floor["bleu"] < 5.0
    assert floor == dict(zip(("bleu", "chrf"), corpus_scores(*zip(*texts, strict=True))[:2], strict=True))


def test_ids_outside_a_translations_vocabulary_are_refused(tokenizer) -> None:
    """A source with an id that the model has no row for ends the evaluation with a sentence."""
    model = build(gnomon.GnomonForSeq2SeqLM, {**PAIR, "vocab_size": 100, "decoder_start_token_id": 0})
    with pytest.raises(ValueError, match="outside the model's vocabulary of 100"):
        evaluate_translation(
            model,
            pairs_of([("one", "two")], tokenizer),
            collate=lambda rows: collate_pairs(rows, pad_token_id=0, start_token_id=0),
            decode=str,
        )
