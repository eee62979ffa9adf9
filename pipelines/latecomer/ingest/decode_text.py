"""Decode a file into blocks of UTF-8 with ``\\n`` as line end, whatever its encoding and line ends are."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator

BLOCK_BYTES = 16 << 20
"""Bytes of text that are parsed at once, and the longest record of CSV."""
INVALID = "\ufffd\uffff"
"""What stands for bytes that the encoding does not have: U+FFFD, told from one in the file by a noncharacter."""
INVALID_BYTES = INVALID.encode()
Source = Callable[[], Iterable[bytes]]
"""Returns a file's bytes from the beginning, in pieces of any size, at each call."""
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # begins with the mark of UTF-16
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_ERRORS = "latecomer-invalid"


def _replace_invalid(error: UnicodeError) -> tuple[str, int]:
    if isinstance(error, UnicodeDecodeError | UnicodeEncodeError):
        return INVALID, error.end
    raise error


codecs.register_error(_ERRORS, _replace_invalid)


class FileProblem(Exception):
    """A file as a whole cannot be used. The text is the problem, `remedy` the way to mend it."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem, self.remedy = problem, remedy
        super().__init__(problem)


class DecodedText:
    """A file's text in blocks: UTF-8, ``\\n`` as line end, :data:`INVALID` for bytes that the encoding does not have.

    Attributes
    ----------
    encoding
        The encoding: the stated one until reading begins, then that of the byte order mark if the file has one.
    """

    def __init__(self, source: Source, encoding: str, returns: bool) -> None:
        """`returns`: a carriage return ends a line also in a file with newlines."""
        self._source, self.encoding, self._returns = source, encoding, returns

    def blocks(self) -> Iterator[bytes]:
        """Yield the text in blocks of about :data:`BLOCK_BYTES`."""
        parts: list[bytes] = []
        held = 0
        for piece in self._pieces():
            parts.append(piece)
            held += len(piece)
            if held >= BLOCK_BYTES:
                yield b"".join(parts)
                parts, held = [], 0
        if held:
            yield b"".join(parts)

    def whole_lines(self) -> Iterator[bytes]:
        """Yield the text in blocks that end with a line. A longer line than a block is a block."""
        parts: list[bytes] = []
        held, enough = 0, BLOCK_BYTES
        for piece in self._pieces():
            parts.append(piece)
            held += len(piece)
            if held < enough:
                continue
            text = b"".join(parts)
            cut = text.rfind(b"\n") + 1
            if cut:
                yield text[:cut]
            parts, held = [text[cut:]], len(text) - cut
            enough = max(BLOCK_BYTES, 2 * held)
        if held:
            yield b"".join(parts)

    def _pieces(self) -> Iterator[bytes]:
        """Yield the text with newlines as line ends."""
        returns = self._returns or not any(b"\n" in piece for piece in self._decoded())
        held = b""  # a carriage return, which a newline may follow
        for decoded in self._decoded():
            piece = held + decoded
            held = b"\r" if piece.endswith(b"\r") else b""
            piece = piece[:-1] if held else piece
            if b"\r" in piece:
                piece = piece.replace(b"\r\n", b"\n")
                piece = piece.replace(b"\r", b"\n") if returns else piece
            yield piece
        yield held and (b"\n" if returns else held)

    def _decoded(self) -> Iterator[bytes]:
        """Yield the text as UTF-8 without a byte order mark."""
        pieces = iter(self._source())
        begin = b""
        for piece in pieces:
            begin += piece
            if len(begin) >= 4:
                break
        for mark, encoding in _MARKS:
            if begin.startswith(mark):
                begin, self.encoding = begin[len(mark) :], encoding
                break
        try:
            yield from self._decode(begin, pieces)
        except UnicodeError as error:
            raise FileProblem(f"cannot be read as {self.encoding} ({error})", "state another encoding") from None

    def _decode(self, begin: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
        decoder = codecs.getincrementaldecoder(self.encoding)(_ERRORS)
        is_utf8 = self.encoding in ("utf-8", "utf-8-sig")
        piece: bytes | None = begin
        while piece is not None:
            if is_utf8 and piece.isascii() and not decoder.getstate()[0]:
                yield piece
            else:
                yield decoder.decode(piece).encode("utf-8", _ERRORS)
            piece = next(pieces, None)
        yield decoder.decode(b"", True).encode("utf-8", _ERRORS)
