"""Local text in, and the split into what is trained on and what is held out."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon.data.files import Document, read_documents
from gnomon.data.text import hold_out, load_text, split_at_line

ROWS = ["First row.\n", '  second, "quoted"', "dritte Zeile: Größe\r\n"]


def write(folder, kind, rows=ROWS, column="text"):
    """A file of that kind with these rows."""
    file = folder / f"data.{kind}"
    if kind == "jsonl":
        lines = (json.dumps({"id": n, column: row}, ensure_ascii=n % 2 == 0) for n, row in enumerate(rows))
        file.write_text("\n".join(lines), encoding="utf-8")
    elif kind == "json":
        file.write_text(json.dumps([{column: row, "id": n} for n, row in enumerate(rows)]), encoding="utf-8")
    elif kind == "csv":
        import csv

        with file.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerows([("id", column), *enumerate(rows)])
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({"id": list(range(len(rows))), column: rows}), file)
    return file


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_tables_of_every_kind_give_the_same_documents(kind, tmp_path):
    """A row is a document, and its text comes out exactly as it went in, line ends and quotes included."""
    documents = read_documents(write(tmp_path, kind), "text")
    assert [document.text for document in documents] == ROWS
    assert [document.name for document in documents] == [f"data.{kind}:{n}" for n in (1, 2, 3)]


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_missing_column_names_those_that_there_are(kind, tmp_path):
    """Without the column the error lists the file's own columns and the key to choose one with."""
    file = write(tmp_path, kind, column="story")
    with pytest.raises(ValueError, match=r"no column 'text', only .*story.*data\.column"):
        load_text(source=file)
    assert load_text(source=file, column="story").num_train_characters > 0


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
def test_column_of_numbers_is_refused(kind, tmp_path):
    """A column that holds something else than text is an error that names its type."""
    with pytest.raises(ValueError, match=r"must hold text, but row 1 of .* holds int"):
        load_text(source=write(tmp_path, kind), column="id")


def test_long_field_of_a_table_is_not_cut(tmp_path):
    """A document of 300,000 characters comes out of a CSV file whole."""
    rows = ["x" * 300_000, "y"]
    assert [d.text for d in read_documents(write(tmp_path, "csv", rows), "text")] == rows


def test_line_separators_inside_json_lines_are_kept(tmp_path):
    """U+2028 and a form feed inside a JSON string do not end the line."""
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a\u2028b\u0085c"}\n\n{"text": "d"}\n', encoding="utf-8")
    assert [d.text for d in read_documents(file, "text")] == ["a\u2028b\u0085c", "d"]


def test_text_file_is_one_document_exactly_as_it_stands(tmp_path):
    """Nothing of a .txt file is normalized: spaces, carriage returns and a missing last line break stay."""
    text = "  one\r\n\r\n two\t\n\n\nthree "
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read_documents(tmp_path / "a.txt", "text") == [Document("a.txt", text, "a.txt")]


def test_folder_gives_one_document_a_text_file(tmp_path):
    """Files are found in subfolders too, named by their place; hidden and unknown files are passed over."""
    for place in ("b.txt", "a/c.txt", ".hidden/d.txt", "README", "picture.png"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(place)
    assert [document.name for document in read_documents(tmp_path, "text")] == ["a/c.txt", "b.txt"]


def test_empty_documents_are_left_out_and_an_empty_text_refused(tmp_path):
    """Empty rows and nulls are no documents; if nothing else is there, that is an error."""
    documents = read_documents(write(tmp_path, "parquet", ["", "a", None, "b"]), "text")
    assert [document.text for document in documents] == ["a", "b"]
    (tmp_path / "empty.txt").touch()
    with pytest.raises(ValueError, match="holds no text at all"):
        load_text(source=tmp_path / "empty.txt")
    with pytest.raises(ValueError, match="holds no text at all"):
        load_text(source=write(tmp_path, "csv", []))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"caf\xe9", r"must be UTF-8, but byte 3 of .*a\.txt.*iconv"),
        ("a.jsonl", b'{"text": "a"}\n{"text": ', r"line 2 of .*a\.jsonl is not valid JSON"),
        ("a.jsonl", b'["a"]', "row 1 of .* must be an object with fields, not list"),
        ("a.jsonl", b'{"text": "\\ud83d"}', "half a surrogate pair"),
        ("a.json", b'{"text": "a"}', "must hold a list of objects, not dict"),
        ("a.csv", b'text\n"open', "is not valid CSV"),
        ("a.parquet", b"PAR2", "is not a Parquet file"),
        ("a.docx", b"x", r"must end in \.txt.*not '\.docx'"),
    ],
)
def test_damaged_file_is_refused_by_name(name, content, message, tmp_path):
    """Each kind of damage gets a sentence that names the file and what is wrong with it."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_text(source=tmp_path / name)


def test_missing_file_is_not_looked_for_on_the_network(tmp_path, monkeypatch):
    """What is written like a path is a path: if it is missing, that is the error, at once."""
    monkeypatch.chdir(tmp_path)
    for source in ("missing.txt", "./missing", "~/no/such", "a/b/c", str(tmp_path / "no"), "folder/"):
        with pytest.raises(FileNotFoundError, match="there is no file or folder"):
            load_text(source=source)


def test_folder_without_data_files_is_refused(tmp_path):
    """A folder that holds none of the known kinds is an error that lists them."""
    with pytest.raises(ValueError, match=r"must hold \.txt, \.jsonl"):
        load_text(source=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "not neither"),
        ({"name": "shakespeare", "source": "x.txt"}, "not both"),
        ({"name": "shakespeare", "validation_percent": 5}, r"data\.validation_percent \(5\) has no meaning"),
        ({"name": "shakespeare", "split": "test"}, "comes with its own split"),
        ({"source": "{}", "validation_percent": 0}, "above 0 and below 100, not 0"),
        ({"source": "{}", "validation_percent": 100}, "above 0 and below 100, not 100"),
        ({"source": "{}", "validation_percent": 5, "validation": "b.txt"}, "exclude each other"),
        ({"source": "{}", "split": "train"}, "local file or folder"),
        ({"source": "{}", "subset": "en"}, "local file or folder"),
        ({"source": "{}", "validation": "{}"}, "share files"),
    ],
)
def test_contradicting_options_are_refused(options, message, tmp_path):
    """No option overrides another in silence, and none is ignored."""
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    filled = {
        key: value.format(tmp_path / "a.txt") if isinstance(value, str) else value for key, value in options.items()
    }
    with pytest.raises(ValueError, match=message):
        load_text(**filled)


def test_validation_file_is_taken_as_a_whole(tmp_path):
    """An explicit validation file is all held out, and the source is all trained on."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"{name} text\n")
    splits = load_text(source=tmp_path / "a.txt", validation=tmp_path / "b.txt")
    assert splits.train == {"a.txt": "a text\n"}
    assert splits.validation == {"b.txt": "b text\n"}


def test_validation_inside_the_source_is_refused(tmp_path):
    """A validation file that lies in the training folder would be trained on, so it is refused."""
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ValueError, match="share files"):
        load_text(source=tmp_path, validation=tmp_path / "a.txt")


def test_single_document_is_held_out_by_its_last_lines(tmp_path):
    """Of one file the last tenth is held out, from a line break on; both parts together are the file."""
    text = "".join(f"line {number}\n" for number in range(500))
    (tmp_path / "a.txt").write_text(text)
    splits = load_text(source=tmp_path / "a.txt")
    head, tail = splits.train["a.txt"], splits.validation["a.txt"]
    assert head + tail == text
    assert head.endswith("\n")
    assert 0.09 < len(tail) / len(text) < 0.11


@given(text=st.text(alphabet="ab\n", min_size=2, max_size=60), percent=st.floats(0.01, 99.99))
@settings(deadline=None)
def test_cut_loses_nothing_and_leaves_neither_side_empty(text, percent):
    """Whatever the text and the percentage, the two parts are the text and each has a character."""
    head, tail = split_at_line(text, percent)
    assert head + tail == text
    assert head
    assert tail
    if "\n" in text[:-1]:
        assert head.endswith("\n")


def test_text_of_one_character_cannot_be_split(tmp_path):
    """A text too short for two sides is refused with the remedy."""
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match=r"cannot be split: .*data\.validation"):
        load_text(source=tmp_path / "a.txt")


@given(names=st.sets(st.text(min_size=1, max_size=8), min_size=2, max_size=40), percent=st.floats(0.01, 99.99))
@settings(deadline=None)
def test_split_is_a_partition_by_document(names, percent):
    """Every document stands on exactly one side, in the order given, and neither side is empty."""
    documents = [Document(name, "text", name) for name in sorted(names)]
    train, held_out = hold_out(documents, percent)
    assert train
    assert held_out
    assert sorted(train + held_out) == documents
    assert hold_out(documents, percent) == (train, held_out)


def test_document_keeps_its_side_when_others_come_and_go():
    """The side of a document depends on its own name: more documents move none across."""
    documents = [Document(f"{number}.txt", "text", f"{number}.txt") for number in range(400)]
    _, held_out_of_all = hold_out(documents, 10)
    _, held_out_of_half = hold_out(documents[:200], 10)
    assert held_out_of_half == [document for document in held_out_of_all if document in documents[:200]]
    assert 20 < len(held_out_of_all) < 60


def test_equal_rows_never_stand_on_both_sides(tmp_path):
    """A row that is repeated is held out everywhere or nowhere, so no trained text is ever scored."""
    rows = [f"row {number % 25}" for number in range(100)]
    splits = load_text(source=write(tmp_path, "jsonl", rows), validation_percent=30)
    assert not set(splits.train.values()) & set(splits.validation.values())
    assert len(splits.train) + len(splits.validation) == 100
    with pytest.raises(ValueError, match="all 3 documents are the same text"):
        load_text(source=write(tmp_path, "jsonl", ["same"] * 3))


def test_split_of_known_names_never_changes():
    """The hash is pinned: a later version holds the same documents out."""
    documents = [Document(name, "text", name) for name in "abcdefghijklmnopqrstuvwxyz"]
    assert "".join(document.name for document in hold_out(documents, 20)[1]) == "cdfjnpsux"
