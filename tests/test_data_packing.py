"""Packing: every id predicted once, no sequence twice, nothing lost, whatever the lengths."""

import time
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from gnomon.data import encoding
from gnomon.data.encoding import cut_at_lines, encode_documents, treats_lines_alone
from gnomon.data.fetch import read_dataset
from gnomon.data.packing import IGNORED_LABEL, PackedText, collate, pack
from gnomon.data.text import load_text
from gnomon.data.tokenizers import build_tokenizer

DOCUMENTS = {"a": "the first play\n", "b": "a second\n\n", "c": "and   the third one , in lines\n" * 3}
BYTE = build_tokenizer({"kind": "byte"})
TOKENIZERS = {
    "byte": BYTE,
    "char": build_tokenizer({"kind": "char"}, DOCUMENTS),
    "bpe": build_tokenizer({"kind": "bpe", "vocab_size": 270}, DOCUMENTS),
}


def word_tokenizer(**marks):
    """A tokenizer of another make: words, with two different document marks and an unknown token."""
    vocabulary = {word: index for index, word in enumerate(["<s>", "</s>", "<u>", "the", "first", "and", "in"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<u>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.enable_truncation(4)
    marks = marks or {"bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<u>", model_max_length=4, **marks)


def predictions(packed):
    """(position in the stream, label) of everything that the windows predict, from the windows' contents."""
    stride = packed.sequence_length - 1
    for number in range(len(packed)):
        row = packed[number]
        for offset, label in enumerate(row["labels"].tolist()):
            if offset > 0 and label != IGNORED_LABEL:
                yield number * stride + offset, label


@given(num_ids=st.integers(2, 200), sequence_length=st.integers(2, 40))
@settings(deadline=None)
def test_every_id_but_the_first_is_predicted_exactly_once(num_ids, sequence_length):
    """For any length of stream and window: each id after the first, once, from the id before it; none twice."""
    ids = np.arange(100, 100 + num_ids, dtype=np.int32)
    packed = PackedText(
        ids,
        sequence_length,
        start_id=7,
        end_id=7,
        num_documents=1,
        num_characters=1,
        num_bytes=1,
        num_unknown=0,
    )
    assert list(predictions(packed)) == [(place, 100 + place) for place in range(1, num_ids)]
    assert packed.num_predicted == num_ids - 1
    windows = [packed[number]["input_ids"].tolist() for number in range(len(packed))]
    assert all(len(window) == sequence_length for window in windows[:-1])
    assert 2 <= len(windows[-1]) <= sequence_length
    assert len({tuple(window) for window in windows}) == len(windows)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_stream_is_the_documents_between_marks(kind):
    """The stream begins and ends with the mark, has one between documents, and decodes to them exactly."""
    tokenizer = TOKENIZERS[kind]
    packed = pack(DOCUMENTS, tokenizer, 8)
    mark = tokenizer.eos_token_id
    assert packed.ids[0] == packed.ids[-1] == mark
    parts = np.split(packed.ids, np.flatnonzero(packed.ids == mark))[1:-1]
    assert [tokenizer.decode(part[1:]) for part in parts] == list(DOCUMENTS.values())
    assert packed.num_characters == sum(map(len, DOCUMENTS.values()))
    assert packed.num_documents == 3


def test_every_held_out_character_is_predicted_exactly_once():
    """On the embedded split each of The Tempest's characters is a label once, plus one for its end."""
    splits = load_text(name="shakespeare")
    tokenizer = build_tokenizer({"kind": "char"}, splits.train)
    packed = pack(splits.validation, tokenizer, 128)
    labels = [label for _, label in predictions(packed)]
    assert tokenizer.decode(labels[:-1]) == splits.validation["the-tempest"]
    assert labels[-1] == tokenizer.eos_token_id
    assert packed.num_unknown == 0


def test_no_training_sequence_comes_twice_in_an_epoch():
    """Shuffled as a trainer does, the windows of one epoch are all different and cover every id."""
    packed = pack(load_text(name="shakespeare").train, BYTE, 128)
    sampler = torch.utils.data.RandomSampler(packed, generator=torch.Generator().manual_seed(3))
    order = list(sampler)
    assert order != sorted(order)
    seen = Counter(packed[index]["input_ids"].numpy().tobytes() for index in order)
    assert max(seen.values()) == 1
    assert len(seen) == len(packed) == -(-packed.num_predicted // 127)


def test_different_marks_are_both_written_and_the_first_never_predicted():
    """With bos and eos apart, a document stands between them, and no bos is a label."""
    packed = pack({"a": "the first", "b": "and in"}, word_tokenizer(), 4)
    assert packed.ids.tolist() == [0, 3, 4, 1, 0, 5, 6, 1]
    assert [label for _, label in predictions(packed)] == [3, 4, 1, 5, 6, 1]
    assert packed.num_predicted == 6


@pytest.mark.parametrize("mark", ["bos_token", "eos_token"])
def test_one_mark_serves_for_both(mark):
    """A tokenizer with only a bos or only an eos token uses it before, between and after documents."""
    packed = pack({"a": "the first", "b": "and in"}, word_tokenizer(**{mark: "</s>"}), 4)
    assert packed.ids.tolist() == [1, 3, 4, 1, 5, 6, 1]


def test_settings_of_a_tokenizer_cut_nothing():
    """Truncation, padding and a maximum length set in a tokenizer neither shorten a text nor are changed."""
    tokenizer = word_tokenizer()
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 4
    packed = pack({"a": "the first and " * 10}, tokenizer, 8)
    assert len(packed.ids) == 32
    assert tokenizer.backend_tokenizer.truncation["max_length"] == 4


def test_names_of_special_tokens_in_a_text_are_text():
    """A tokenizer that reads `<|endoftext|>` as the end of a document does so in prompts, and not in packing."""
    text = "a<|endoftext|>b"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=BYTE.backend_tokenizer, eos_token="<|endoftext|>")
    assert tokenizer(text)["input_ids"] == [97, 256, 98]
    assert pack({"a": text}, tokenizer, 4).ids.tolist() == [256, *text.encode(), 256]
    assert tokenizer(text)["input_ids"] == [97, 256, 98]


def test_unknown_tokens_are_counted():
    """What the tokenizer does not know is counted, never dropped."""
    packed = pack({"a": "thé first ☃☃\n"}, TOKENIZERS["char"], 8)
    assert packed.num_unknown == 3
    assert len(packed.ids) == 13 + 2
    assert (packed.num_characters, packed.num_bytes) == (13, 18)


def test_text_shorter_than_a_sequence_is_refused_for_training_alone():
    """Less than one window of text is an error with the remedy, unless it is only evaluated on."""
    with pytest.raises(ValueError, match=r"makes 5 tokens, fewer than one sequence of 8: lower data\.seq"):
        pack({"a": "abc"}, BYTE, 8)
    packed = pack({"a": "abc"}, BYTE, 8, allow_short=True)
    assert len(packed) == 1
    assert packed[0]["input_ids"].tolist() == [256, 97, 98, 99, 256]
    assert len(pack({"a": "abcdef"}, BYTE, 8)) == 1


@pytest.mark.parametrize("length", [1, 0, -5, 8.0, True])
def test_impossible_sequence_length_is_refused(length):
    """A sequence needs an id to read and one to predict, as a whole number."""
    with pytest.raises(ValueError, match="whole number of at least 2"):
        pack(DOCUMENTS, BYTE, length)


def test_text_without_tokens_is_refused():
    """No documents, empty documents, and a document in which the tokenizer sees nothing, are errors."""
    for documents in ({}, {"a": ""}):
        with pytest.raises(ValueError, match="the text is empty"):
            pack(documents, BYTE, 8)
    with pytest.raises(ValueError, match="finds no token in the document"):
        pack({"a": "the", "b": " \n "}, word_tokenizer(), 2)


def test_window_numbers_end_where_the_windows_do():
    """Counting from the end works, and a number too high is an IndexError, as for any sequence."""
    packed = pack(DOCUMENTS, BYTE, 8)
    assert torch.equal(packed[-1]["input_ids"], packed[len(packed) - 1]["input_ids"])
    for index in (len(packed), -len(packed) - 1):
        with pytest.raises(IndexError, match="windows"):
            packed[index]


def test_short_window_is_filled_on_the_right():
    """In a batch the last, shorter window has padding ids, ignored labels and a mask of 0; full ones need none."""
    packed = pack({"a": "abcdefgh"}, BYTE, 8)
    batch = collate([packed[0], packed[1]], pad_token_id=257)
    assert batch["input_ids"].tolist() == [[256, *b"abcdefg"], [*b"gh", 256, *[257] * 5]]
    assert batch["labels"].tolist() == [[-100, *b"abcdefg"], [-100, *b"h", 256, *[-100] * 5]]
    assert batch["attention_mask"].tolist() == [[1] * 8, [1] * 3 + [0] * 5]
    assert set(collate([packed[0]])) == {"input_ids", "labels"}


# Merges of white space, which only a text full of it teaches: they tell where a text must not be cut.
GAPS = "one\n\n\ntwo  \n three\n\n  \n four\t\n\nfive\r\n\r\n" * 30
CUTTABLE = TOKENIZERS | {"gaps": build_tokenizer({"kind": "bpe", "vocab_size": 282}, {"a": GAPS})}


@pytest.mark.parametrize("kind", CUTTABLE)
@given(
    text=st.lists(st.sampled_from(["a", "the", " ", "  ", "\n", "\n\n", "\r\n", "\t", "'s", "!", "é", "\u2028"]))
    .map("".join)
    .filter(bool),
    size=st.integers(1, 12),
)
@settings(deadline=None)
def test_cutting_a_long_text_changes_no_id(kind, text, size):
    """Encoding a text in pieces gives the ids of the whole, wherever the pieces end."""
    tokenizer = CUTTABLE[kind]
    assert treats_lines_alone(tokenizer.backend_tokenizer)
    pieces = list(cut_at_lines(text, size))
    assert "".join(pieces) == text
    whole = tokenizer(text)["input_ids"]
    assert [index for piece in pieces for index in tokenizer(piece)["input_ids"]] == whole


def test_other_tokenizers_are_given_whole_texts():
    """Only where line breaks are known to part tokens is a text cut: not with a normalizer or another split."""
    assert not treats_lines_alone(word_tokenizer().backend_tokenizer)
    prefixed = Tokenizer(models.BPE())
    prefixed.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert not treats_lines_alone(prefixed)


def test_blocks_leave_documents_apart(monkeypatch):
    """However small the blocks, each document's ids come out whole and in order."""
    texts = list(DOCUMENTS.values())
    expected = [ids.tolist() for ids in encode_documents(texts, TOKENIZERS["bpe"])]
    monkeypatch.setattr(encoding, "BLOCK_CHARACTERS", 10)
    assert [ids.tolist() for ids in encode_documents(texts, TOKENIZERS["bpe"])] == expected
    assert expected == [TOKENIZERS["bpe"](text)["input_ids"] for text in texts]


@pytest.mark.parametrize("kind", ["byte", "char", "bpe"])
def test_a_million_characters_are_packed_in_seconds(kind):
    """The embedded text, as one document of 1 MB, is packed in a few seconds at most (measured: 0.5)."""
    text = "".join(read_dataset("shakespeare").values())
    spec = {"kind": kind, "vocab_size": 512} if kind == "bpe" else {"kind": kind}
    tokenizer = build_tokenizer(spec, {"all": text})
    start = time.perf_counter()
    packed = pack({"all": text}, tokenizer, 128)
    assert time.perf_counter() - start < 10
    assert packed.num_characters == len(text)
