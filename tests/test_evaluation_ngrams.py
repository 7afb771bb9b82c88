"""N-grams against a version with dictionaries, and as probability distributions."""

import math
import time
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.data.packing import pack
from gnomon.data.text import load_text
from gnomon.data.tokenizers import build_tokenizer
from gnomon.evaluation.ngrams import NGramModel

STREAMS = st.lists(st.integers(0, 4), min_size=1, max_size=40)


def naive_probability(train, context, token, vocab_size):
    """The recursion of Witten-Bell as it is written, by counting in a dictionary each time."""
    lower = naive_probability(train, context[1:], token, vocab_size) if context else 1 / vocab_size
    followers = Counter(
        train[place + len(context)]
        for place in range(len(train) - len(context))
        if train[place : place + len(context)] == context
    )
    if not followers:
        return lower
    return (followers[token] + len(followers) * lower) / (sum(followers.values()) + len(followers))


@given(train=STREAMS, text=STREAMS, order=st.integers(1, 5))
@settings(deadline=None)
def test_probabilities_are_those_of_the_naive_recursion(train, text, order):
    """Every token's probability equals the dictionary version's, for seen, unseen and short contexts."""
    found = NGramModel(order, 5).fit(np.array(train)).probabilities(np.array(text))
    expected = [
        naive_probability(train, text[max(0, place - order + 1) : place], text[place], 5) for place in range(len(text))
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@given(train=STREAMS, context=st.lists(st.integers(0, 6), max_size=6), order=st.integers(1, 4))
@settings(deadline=None)
def test_probabilities_of_all_tokens_sum_to_one(train, context, order):
    """After any context, seen or not, the vocabulary's probabilities sum to 1, and none is 0."""
    model = NGramModel(order, 7).fit(np.array(train))
    next_token = [model.probabilities(np.array([*context, token]))[-1] for token in range(7)]
    assert math.fsum(next_token) == pytest.approx(1, abs=1e-12)
    assert min(next_token) > 0


def test_loss_leaves_out_the_first_token_alone():
    """The loss is the mean of -ln P over every token but the first, which only serves as context."""
    train, text = [0, 1, 2, 0, 1, 1], [2, 0, 1]
    model = NGramModel(2, 3).fit(np.array(train))
    by_hand = -sum(math.log(naive_probability(train, [text[i - 1]], text[i], 3)) for i in (1, 2)) / 2
    assert model.loss(np.array(text)) == pytest.approx(by_hand, rel=1e-12)


def test_large_vocabulary_and_order_do_not_overflow():
    """With 200,000 ids and order 6 the keys still tell all n-grams apart: a seen text costs little."""
    ids = np.random.default_rng(0).integers(0, 200_000, 5_000)
    model = NGramModel(6, 200_000).fit(ids)
    contexts = defaultdict(int)
    for key in zip(*(ids[start : len(ids) - 5 + start].tolist() for start in range(6)), strict=True):
        contexts[key] += 1
    assert len(model._keys[-1]) == len(contexts)
    assert model.loss(ids) < 2


def test_fitting_again_forgets_the_first_text():
    """A second fit counts the second text alone."""
    model = NGramModel(3, 4).fit(np.array([0, 1, 2, 3] * 5)).fit(np.array([3, 3, 3, 3]))
    assert model.loss(np.array([3, 3, 3])) == NGramModel(3, 4).fit(np.array([3, 3, 3, 3])).loss(np.array([3, 3, 3]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: NGramModel(0, 5), "at least 1, not 0 and 5"),
        (lambda: NGramModel(2, 5).fit(np.array([1, 5])), "must lie in 0..4"),
        (lambda: NGramModel(2, 5).fit(np.array([-1, 2])), "from -1 to 2"),
        (lambda: NGramModel(2, 5).fit(np.array([], dtype=int)), "at least one token"),
        (lambda: NGramModel(2, 5).loss(np.array([1, 2])), "call fit first"),
        (lambda: NGramModel(2, 5).fit(np.array([1, 2])).loss(np.array([1])), "at least two tokens"),
    ],
)
def test_misuse_is_refused(call, message):
    """Impossible orders, ids outside the vocabulary, and texts too short are errors with the numbers."""
    with pytest.raises(ValueError, match=message):
        call()


def test_floors_on_the_embedded_text_are_the_published_ones():
    """Held-out nats per character of The Tempest: 2.521, 2.164 and 1.878 for orders 2, 3 and 5; in seconds."""
    splits = load_text(name="shakespeare")
    tokenizer = build_tokenizer({"kind": "char"}, splits.train)
    train, held_out = (pack(part, tokenizer, 128).ids for part in (splits.train, splits.validation))
    start = time.perf_counter()
    losses = {order: NGramModel(order, len(tokenizer)).fit(train).loss(held_out) for order in (2, 3, 5)}
    assert time.perf_counter() - start < 30
    assert losses == pytest.approx({2: 2.5211, 3: 2.1636, 5: 1.8778}, abs=1e-4)
