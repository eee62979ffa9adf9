"""Read the bytes of landing files, which may be compressed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from latecomer.ingest.decode_text import FileProblem
from latecomer.ingest.source_file import LandingFile

_PIECE_BYTES = 1 << 20
_SIGNATURES = {
    ".gz": (b"\x1f\x8b",),
    ".bz2": (*(b"BZh%d1AY&SY" % level for level in range(1, 10)), *(b"BZh%d\x17rE8P\x90" % n for n in range(1, 10))),
    ".zst": (b"\x28\xb5\x2f\xfd",),
    ".xz": (b"\xfd7zXZ\x00",),
    ".zip": (b"PK\x03\x04", b"PK\x05\x06"),
}
"""The bytes with which compressed files begin, by suffix."""


def content(path: LandingFile) -> Iterator[bytes]:
    """Yield the file's bytes piece by piece from the beginning; a compressed file is decompressed, whatever the suffix.

    Raises
    ------
    FileProblem
        The file cannot be read, or is a zip that does not hold exactly one file.
    """
    try:
        with path.opened() as handle:
            begins = io.BufferedReader(handle, _PIECE_BYTES)
            begin = begins.peek(16)[:16]
            packing = _packing(begin, path.name) if begin else None
            if packing != ".zip":
                yield from _unpacked(begins, packing)
                return
        with path.opened(seekable=True) as handle:
            yield from _unzipped(handle)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, pa.ArrowException) as error:
        raise FileProblem(f"cannot be read ({error})", "check the file") from None


def _packing(begin: bytes, name: str) -> str | None:
    """Return the suffix of the compression that the first bytes tell, else that of the name; None: there is none."""
    told = next((suffix for suffix, begins in _SIGNATURES.items() if begin.startswith(begins)), None)
    return told or next((suffix for suffix in _SIGNATURES if name.lower().endswith(suffix)), None)


def _unpacked(handle: io.BufferedReader, packing: str | None) -> Iterator[bytes]:
    if packing == ".gz":
        with gzip.open(handle) as file:
            yield from _pieces(file)
    elif packing == ".zst":
        with pa.CompressedInputStream(pa.PythonFile(handle, mode="r"), "zstd") as file:
            yield from _pieces(file)
    elif packing == ".bz2":
        yield from _streams(handle, bz2.BZ2Decompressor)
    elif packing == ".xz":
        yield from _streams(handle, lzma.LZMADecompressor)
    else:
        yield from _pieces(handle)


def _pieces(file: Any) -> Iterator[bytes]:
    while piece := file.read(_PIECE_BYTES):
        yield piece


def _streams(handle: io.BufferedReader, decompressor: Callable[[], Any]) -> Iterator[bytes]:
    """Yield the content of compressed streams one after the other.

    Python's files of these formats leave out what follows a stream and is none.
    """
    stream = None
    for packed in _pieces(handle):
        rest = packed
        while rest or (stream is not None and not stream.needs_input):
            if stream is None:
                rest = rest.lstrip(b"\0")  # padding
                if not rest:
                    break
                stream = decompressor()
            piece = stream.decompress(rest, _PIECE_BYTES)
            if piece:
                yield piece
            rest = b""
            if stream.eof:
                rest, stream = stream.unused_data, None
    if stream is not None:
        raise EOFError("it ends within its compressed data")


def _unzipped(handle: Any) -> Iterator[bytes]:
    """Yield the content of the one file of a zip. Folders and the notes of file systems are none."""
    with zipfile.ZipFile(handle) as packed:
        files = [info for info in packed.infolist() if not info.is_dir() and not _is_note(info.filename)]
        if len(files) != 1:
            remedy = "unpack it, or pack every file into a zip of its own"
            raise FileProblem(f"is a zip of {len(files)} files, not of one", remedy)
        if files[0].flag_bits & 1:
            raise FileProblem("is an encrypted zip", "unpack it")
        try:
            file = packed.open(files[0])
        except NotImplementedError as error:
            raise FileProblem(f"cannot be read ({error})", "unpack it") from None
        with file:
            yield from _pieces(file)


def _is_note(name: str) -> bool:
    return any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))
