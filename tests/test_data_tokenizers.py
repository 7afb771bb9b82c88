"""Tokenizers: exact round trips, saving and loading, and what is refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from gnomon.data.tokenizers import (
    PADDING,
    SEPARATOR,
    UNKNOWN,
    build_tokenizer,
    document_marks,
    load_tokenizer,
)

SCENE = (
    "BERNARDO:\nWho's there?\n\n  FRANCISCO:\nNay, answer me: stand , and unfold yourself .\n"
    "[Enter Ghost]\n\n\tDo n't 've  're!\r\n"
)
DOCUMENTS = {"a": SCENE * 20, "b": "'Tis now struck twelve; get thee to bed.\n" * 10}
ALPHABET = "".join(sorted(set("".join(DOCUMENTS.values()))))
SPECS = {
    "byte": {"kind": "byte"},
    "char": {"kind": "char"},
    "bpe": {"kind": "bpe", "vocab_size": 300},
}
TOKENIZERS = {kind: build_tokenizer(spec, DOCUMENTS) for kind, spec in SPECS.items()}

# Ordinary text, with what tends to be lost: spaces at the ends and before punctuation, and special tokens' names.
PIECES = st.sampled_from([" ", "  ", "\n", "\n\n", "\t", "\r\n", " .", " ,", "n't", SEPARATOR, PADDING, "é", "😀"])
ANY_TEXT = st.lists(st.one_of(PIECES, st.text(max_size=10)), max_size=8).map("".join)


def round_trip(tokenizer, text):
    """Encode and decode, as a model's input is."""
    return tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)


@pytest.mark.parametrize("kind", ["byte", "bpe"])
@given(text=ANY_TEXT)
@settings(deadline=None)
def test_any_unicode_text_survives_bytes_and_bpe(kind, text):
    """Decoding gives back any text exactly, spaces, line ends and special tokens' names included."""
    assert round_trip(TOKENIZERS[kind], text) == text


@given(text=st.text(alphabet=ALPHABET, max_size=80))
@settings(deadline=None)
def test_any_text_of_its_alphabet_survives_characters(text):
    """The character tokenizer gives back any text over the training text's alphabet, one id a character."""
    tokenizer = TOKENIZERS["char"]
    assert round_trip(tokenizer, text) == text
    assert len(tokenizer(text)["input_ids"]) == len(text)


@given(text=ANY_TEXT)
@settings(deadline=None)
def test_byte_ids_are_the_bytes(text):
    """The byte tokenizer's ids are the text's UTF-8 bytes themselves."""
    assert bytes(TOKENIZERS["byte"](text)["input_ids"]) == text.encode()


@given(text=st.text(max_size=40))
@settings(deadline=None)
def test_no_character_outside_the_alphabet_is_dropped(text):
    """Each character that training never saw becomes one unknown id, in its own place."""
    tokenizer = TOKENIZERS["char"]
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text)
    for character, index in zip(text, ids, strict=True):
        assert (index == tokenizer.unk_token_id) == (character not in ALPHABET)


@pytest.mark.parametrize("kind", SPECS)
def test_saved_tokenizer_is_the_same_for_autotokenizer(kind, tmp_path):
    """AutoTokenizer, beside a model's config.json, loads the same ids, decoding and special tokens."""
    tokenizer = TOKENIZERS[kind]
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gnomon"}))
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.all_special_tokens == tokenizer.all_special_tokens
    for text in (SCENE, f" {SEPARATOR} ☃ .\n"):
        assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert round_trip(loaded, SCENE) == SCENE
    assert load_tokenizer(tmp_path).get_vocab() == tokenizer.get_vocab()
    assert build_tokenizer({"folder": tmp_path}).get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize("kind", SPECS)
def test_special_ids_follow_the_vocabulary(kind):
    """`<|endoftext|>` is bos and eos, padding is another id, and both come after all ids of text."""
    tokenizer = TOKENIZERS[kind]
    assert document_marks(tokenizer) == (tokenizer.eos_token_id,) * 2
    assert tokenizer.eos_token == SEPARATOR
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (len(tokenizer) - 2, len(tokenizer) - 1)
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))


@pytest.mark.parametrize("kind", SPECS)
def test_document_cannot_forge_its_own_end(kind):
    """A special token's name inside a text is encoded as text, and never as the special id."""
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer(f"a{SEPARATOR}b{PADDING}c{UNKNOWN}")["input_ids"]
    assert not {tokenizer.eos_token_id, tokenizer.pad_token_id} & set(ids)


def test_alphabet_is_that_of_the_training_text():
    """The character vocabulary is the training text's, in the order of code points, plus three special ids."""
    tokenizer = build_tokenizer({"kind": "char"}, {"x": "banana\n", "y": "cab"})
    assert tokenizer.convert_ids_to_tokens(list(range(len(tokenizer)))) == [
        *"\nabcn", UNKNOWN, SEPARATOR, PADDING
    ]  # fmt: skip


def test_bpe_has_the_size_asked_for_and_is_deterministic():
    """The whole vocabulary, special ids included, has the size asked for; training twice gives the same merges."""
    tokenizer = TOKENIZERS["bpe"]
    assert len(tokenizer) == 300
    again = build_tokenizer(SPECS["bpe"], DOCUMENTS)
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    assert len(tokenizer(SCENE)["input_ids"]) < 0.8 * len(SCENE)


@pytest.mark.parametrize(
    ("spec", "documents", "message"),
    [
        ({}, DOCUMENTS, "either a kind .* or a folder, not neither"),
        ({"kind": "byte", "folder": "x"}, DOCUMENTS, "not both"),
        ({"kind": "word"}, DOCUMENTS, "must be one of byte, char, bpe, not 'word'"),
        ({"kind": "char", "vocab_size": 50}, DOCUMENTS, "for kind bpe alone"),
        ({"kind": "char", "size": 50}, DOCUMENTS, "not 'size'"),
        ({"kind": "char"}, {}, "made from training text, and there is none"),
        ({"kind": "bpe"}, {"a": ""}, "made from training text, and there is none"),
        ({"kind": "bpe", "vocab_size": 257}, DOCUMENTS, "at least 258"),
        ({"kind": "bpe", "vocab_size": 2000.0}, DOCUMENTS, "whole number"),
        ({"kind": "bpe", "vocab_size": 4096}, DOCUMENTS, "no more than .* lower it to at most"),
    ],
)
def test_wrong_specification_is_refused(spec, documents, message):
    """What contradicts itself, or cannot be made from the text, is refused with the remedy."""
    with pytest.raises(ValueError, match=message):
        build_tokenizer(spec, documents)


def test_remedy_for_too_large_a_vocabulary_works():
    """The largest size that the error offers can really be built."""
    with pytest.raises(ValueError, match="no more than") as caught:
        build_tokenizer({"kind": "bpe", "vocab_size": 4096}, DOCUMENTS)
    largest = int(str(caught.value).split("no more than ")[1].split()[0])
    assert len(build_tokenizer({"kind": "bpe", "vocab_size": largest}, DOCUMENTS)) == largest


def test_wrong_folder_is_refused(tmp_path):
    """A folder that is missing, empty or damaged, and a tokenizer without document marks, are refused."""
    with pytest.raises(FileNotFoundError, match="there is no tokenizer folder"):
        load_tokenizer(tmp_path / "missing")
    with pytest.raises(ValueError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)
    tokenizer = build_tokenizer({"kind": "byte"})
    tokenizer.bos_token = tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"has neither: set tokenizer\.eos_token"):
        load_tokenizer(tmp_path)
