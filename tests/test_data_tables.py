"""Tables of text: their readers, their split, and the batches that tasks make of them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from gnomon.data.catalog import DATASETS, TextDataset, describe
from gnomon.data.classification import collate_labeled, encode_labeled, label_names, majority_label
from gnomon.data.fetch import fetch, read_dataset
from gnomon.data.table_sources import LEXICAL_FILES, read_ding, read_libreoffice_help, read_wordnet
from gnomon.data.tables import load_table
from gnomon.data.text import load_text
from gnomon.data.tokenizers import build_tokenizer
from gnomon.data.translation import collate_pairs, encode_pairs

ROWS = [{"en": f"sentence number {number}", "de": f"Satz Nummer {number}"} for number in range(60)]


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TextDataset:
    """A table of the catalog, `tiny-pairs`, whose package a stand-in for apt unpacks."""
    dataset = TextDataset(
        name="tiny-pairs",
        title="Sixty sentences",
        license="public domain",
        origin="debian",
        package="first-half second-half",
        download_bytes=10,
        num_documents=len(ROWS),
        num_characters=sum(len(text) for row in ROWS for text in row.values()),
        held_out=(),
        reader=lambda folder: [
            json.loads(line) for part in sorted(folder.iterdir()) for line in part.read_text().splitlines()
        ],
        columns=("en", "de"),
        held_out_percent=20.0,
    )

    def download(package: str, scratch: Path, unpacked: Path) -> None:
        unpacked.mkdir(exist_ok=True)
        half = ROWS[:30] if package == "first-half" else ROWS[30:]
        (unpacked / package).write_text("".join(json.dumps(row) + "\n" for row in half))

    monkeypatch.setitem(DATASETS, dataset.name, dataset)
    monkeypatch.setattr("gnomon.data.fetch.download_debian", download)
    monkeypatch.setenv("GNOMON_DATA", str(tmp_path / "cache"))
    return dataset


def test_a_table_is_fetched_from_all_its_packages_and_counted(pairs: TextDataset) -> None:
    """Two packages give one file of rows, which reads back equal, and whose notice names size, origin and license."""
    folder = fetch("tiny-pairs")
    assert read_dataset("tiny-pairs") == ROWS
    assert (folder / "NOTICE").read_text().strip() == describe("tiny-pairs")
    for part in ("60 rows of en, de", "20% of the rows", "first-half second-half", "public domain"):
        assert part in describe("tiny-pairs")
    (folder / "rows.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"must hold 60 rows .* but 1 rows"):
        read_dataset("tiny-pairs")
    (folder / "rows.jsonl").unlink()
    with pytest.raises(ValueError, match="cannot be read as JSON lines"):
        read_dataset("tiny-pairs")


def test_a_table_is_split_alike_in_either_direction_and_as_plain_text(pairs: TextDataset) -> None:
    """English to German, German to English and English alone hold out the same rows, and nothing stands on both."""
    fetch("tiny-pairs")
    there, back = load_table(("en", "de"), name="tiny-pairs"), load_table(("de", "en"), name="tiny-pairs")
    assert [row[::-1] for row in there.validation] == back.validation
    assert len(there.train) + len(there.validation) == len(ROWS)
    assert 0 < len(there.validation) < 25
    assert not {en for en, _ in there.train} & {en for en, _ in there.validation}
    text = load_text(name="tiny-pairs", column="en")
    assert list(text.validation.values()) == [en for en, _ in there.validation]
    for read in (lambda: load_text(name="tiny-pairs"), lambda: load_table(("en", "text"), name="tiny-pairs")):
        with pytest.raises(ValueError, match="columns en, de, and no"):
            read()
    with pytest.raises(ValueError, match="plain text without columns, and no 'en'"):
        load_table(("en",), name="shakespeare")
    with pytest.raises(ValueError, match=r"data\.split has no meaning here"):
        load_table(("en", "de"), name="tiny-pairs", split="train")


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_own_tables_are_read_with_empty_rows_and_number_labels(kind: str, tmp_path: Path) -> None:
    """JSON lines, CSV and Parquet give the same rows; empty ones stay, so that they can be counted."""
    rows = [{"text": f"text {number}" if number % 5 else "", "label": number % 3} for number in range(20)]
    file = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "csv":
        file.write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows))
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    splits = load_table(("text", "label"), source=file, validation_percent=30)
    expected = {(row["text"], str(row["label"])) for row in rows}
    assert set(splits.train) | set(splits.validation) == expected
    assert sum(not text for text, _ in splits.train + splits.validation) == 4
    with pytest.raises(ValueError, match="has no column 'mood', only text, label"):
        load_table(("text", "mood"), source=file)


def test_wordnets_lines_become_definitions_with_their_file(tmp_path: Path) -> None:
    """Words, definition without examples, and the lexical file's name are read off WordNet's own format."""
    folder = tmp_path / "usr/share/wordnet"
    folder.mkdir(parents=True)
    noun = '00001740 18 n 02 red_admiral 0 sailor 0 001 @ 00001930 n 0000 | one who sails; "he was a sailor"  \n'
    (folder / "data.noun").write_text("  1 This is the license.\n" + noun)
    for part in ("verb", "adj", "adv"):
        (folder / f"data.{part}").write_text("  1 This is the license.\n")
    assert read_wordnet(tmp_path) == [{"text": "one who sails", "label": "noun.person", "words": "red admiral, sailor"}]
    assert len(set(LEXICAL_FILES)) == 45


def test_a_dictionary_gives_its_phrases_and_no_single_words(tmp_path: Path) -> None:
    """Matching entries of a line are paired, cleaned of grammar and remarks; fewer than three words are left out."""
    (tmp_path / "usr/share/trans").mkdir(parents=True)
    lines = ["# a remark", "Haus {n} | ein altes Haus [alt]; Bau :: house | an old house (building)", "Rad :: a wheel"]
    (tmp_path / "usr/share/trans/de-en").write_text("\n".join(lines), encoding="utf-8")
    assert read_ding(tmp_path) == [{"en": "an old house", "de": "ein altes Haus"}]


def test_help_pages_are_paired_by_paragraph(tmp_path: Path) -> None:
    """Paragraphs with one id in one file are a pair, tags and line breaks gone; equal or short texts are not."""
    pages = {
        "en-US": '<p id="a">Click <b>the\n button</b> now.</p><h1 id="b">Too short</h1><p id="c">Version 7 of it</p>',
        "de": '<p id="a">Klicken Sie jetzt.</p><h1 id="b">Zu kurz</h1><p id="c">Version 7 of it</p><p id="d">Mehr',
    }
    for language, page in pages.items():
        folder = tmp_path / "usr/share/libreoffice/help" / language / "text" / "shared"
        folder.mkdir(parents=True)
        (folder / "page.html").write_text(page, encoding="utf-8")
    assert read_libreoffice_help(tmp_path) == [{"en": "Click the button now.", "de": "Klicken Sie jetzt."}]


def test_labeled_texts_are_marked_cut_counted_and_padded() -> None:
    """A text stands between marks, a long one is cut, rows without text or label are left out, both are counted."""
    tokenizer = build_tokenizer({"kind": "byte"})
    rows = [("abc", "x"), ("", "y"), ("a long text", "y"), ("ab", ""), ("b", "x")]
    names = label_names(rows)
    data = encode_labeled(rows, tokenizer, 6, names)
    assert names == ["x", "y"]
    assert (len(data), data.num_skipped, data.num_truncated) == (3, 2, 1)
    batch = collate_labeled([data[0], data[1], data[2]], pad_token_id=tokenizer.pad_token_id)
    end = tokenizer.eos_token_id
    assert batch["input_ids"][0].tolist() == [end, *b"abc", end, tokenizer.pad_token_id]
    assert batch["input_ids"][1].tolist() == [end, *b"a lo", end]
    assert batch["attention_mask"].sum(1).tolist() == [5, 6, 3]
    assert batch["labels"].tolist() == [0, 1, 0]
    assert majority_label(data.labels) == 0
    with pytest.raises(ValueError, match=r"the label 'z' \(1 such\) is none of the 2"):
        encode_labeled([("a", "z")], tokenizer, 6, names)
    with pytest.raises(ValueError, match="at least two different labels"):
        label_names([("a", "x"), ("b", "x")])
    with pytest.raises(ValueError, match="none of the 1 rows has a text and a label"):
        encode_labeled([(" ", "x")], tokenizer, 6, names)


def test_pairs_end_shift_and_pad() -> None:
    """Both sides end with the mark, the decoder reads its labels one place late, and padding is never a label."""
    tokenizer = build_tokenizer({"kind": "byte"})
    data = encode_pairs([("ab", "xyz"), ("abcd", "x")], tokenizer, 8, cut=False)
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    batch = collate_pairs([data[0], data[1]], pad_token_id=pad, start_token_id=end)
    assert batch["input_ids"].tolist() == [[*b"ab", end, pad, pad], [*b"abcd", end]]
    assert batch["labels"].tolist() == [[*b"xyz", end], [*b"x", end, -100, -100]]
    assert batch["decoder_input_ids"].tolist() == [[end, *b"xyz"], [end, *b"x", pad, pad]]
    assert torch.equal(batch["attention_mask"], (batch["input_ids"] != pad).long())


def test_long_pairs_are_left_out_of_training_and_cut_for_evaluation() -> None:
    """No half sentence is learned from, every held-out one is scored against its whole reference; both are counted."""
    tokenizer = build_tokenizer({"kind": "byte"})
    rows = [("ab", "xyz"), ("a long source", "x"), ("", "x")]
    learned, scored = (encode_pairs(rows, tokenizer, 6, cut=cut) for cut in (False, True))
    assert (len(learned), learned.num_too_long, learned.num_skipped) == (1, 1, 1)
    assert (len(scored), scored.num_too_long, scored.num_skipped) == (2, 1, 1)
    assert scored.sources[1].tolist() == [*b"a lon", tokenizer.eos_token_id]
    assert scored.texts[1] == ("a long source", "x")
    assert np.array_equal(scored.lengths, [4, 6])
    with pytest.raises(ValueError, match=r"all 1 pairs are longer than data\.sequence_length 3"):
        encode_pairs([("abcd", "x")], tokenizer, 3, cut=False)
