"""Kernels that split CSV, as RFC 4180 has it, into records and fields, and fields into columns."""

from __future__ import annotations

from numba import njit

# The columns of `records`, and what a record is.
FIRST, COUNT, BEGIN, END, LINE, BREAKS, STATE = range(7)
ROW, BLANK, AFTER_QUOTE, NEVER_CLOSED, TOO_LONG = range(5)
_NEWLINE = 10
_CLOSED, _OPEN, _DOOMED = range(3)


@njit(cache=True, nogil=True)
def scan_records(text, final, separator, quote, limit, line, doomed, why, fields, records):  # type: ignore[no-untyped-def]
    """Split text into records.

    A record that is no CSV becomes its first line alone: the next record begins on the next line.

    Parameters
    ----------
    text : uint8[n]
        Text that begins with a record.
    final
        Whether the text ends with the file. If it does not, the last record may be incomplete, and is left.
    separator, quote
        Bytes; a quote of more than 255 is none.
    limit
        A record has fewer bytes.
    line
        The line on which the text begins.
    doomed, why
        A quoted field that is open at a line end before the place `doomed` is no CSV, for the reason `why`: an earlier
        record with the same continuation failed there.
    fields : int32[f, 3]
        Receives begin, end and doubled quotes of the fields. There must be room for every separator and line end.
    records : int64[r, 7]
        Receives number of the first field, number of fields, begin, end, line, further line ends, and state.

    Returns
    -------
    tuple
        Number of records; place and line of the first that is left; `doomed` and `why` for the next text; whether the
        record that is left has a line of `limit` bytes.
    """
    begin, count, used, size = 0, 0, 0, len(text)
    while begin < size:
        stop = min(size, begin + limit)
        first, breaks, after, state, i = used, 0, -1, ROW, begin
        while True:
            start, doubled = i, 0
            if i < stop and text[i] == quote:
                i, doubled, more, behind, how = _skip_quoted(text, i + 1, stop, quote, doomed)
                after = behind if after < 0 else after
                breaks += more
                if how != _CLOSED:
                    state = why if how == _DOOMED else NEVER_CLOSED
                    break
                start, end = start + 1, i
                i += 1
                if i < stop and text[i] != separator and text[i] != _NEWLINE:
                    state = AFTER_QUOTE
                    break
            else:
                while i < stop and text[i] != separator and text[i] != _NEWLINE:
                    i += 1
                end = i
            fields[used, 0], fields[used, 1], fields[used, 2] = start, end, doubled
            used += 1
            if i >= stop or text[i] == _NEWLINE:
                break
            i += 1
        if i >= stop and state in (ROW, NEVER_CLOSED):
            if stop == begin + limit:
                state = TOO_LONG
            elif not final:
                return count, begin, line, doomed, why, False
        end = min(i, size)
        if state != ROW:
            used = first
            if breaks and i > doomed:
                doomed, why = i, state
            end = after - 1 if after >= 0 else _line_end(text, i, stop)
            if after < 0 and end == stop and (stop == begin + limit or not final):
                return count, begin, line, doomed, why, stop == begin + limit
            breaks = 0
        records[count, FIRST], records[count, COUNT] = first, used - first
        records[count, BEGIN], records[count, END] = begin, end
        records[count, LINE], records[count, BREAKS] = line, breaks
        records[count, STATE] = BLANK if end == begin else state
        count += 1
        begin, line = end + 1, line + breaks + 1
    return count, min(begin, size), line, doomed, why, False


@njit(cache=True, nogil=True)
def _skip_quoted(text, i, stop, quote, doomed):  # type: ignore[no-untyped-def]
    """Walk over a quoted field from behind its first quote.

    Returns the place of its last quote or of the stop, the doubled quotes, the line ends, the place behind the first
    line end, and how the field ends.
    """
    doubled, breaks, after = 0, 0, -1
    while i < stop:
        sign = text[i]
        if sign == quote:
            if i + 1 == len(text) or text[i + 1] != quote:
                return i, doubled, breaks, after, _CLOSED
            doubled += 1
            i += 1
        elif sign == _NEWLINE:
            breaks += 1
            after = i + 1 if after < 0 else after
            if i < doomed:
                return i, doubled, breaks, after, _DOOMED
        i += 1
    return i, doubled, breaks, after, _OPEN


@njit(cache=True, nogil=True)
def _line_end(text, i, stop):  # type: ignore[no-untyped-def]
    i = min(i, stop)
    while i < stop and text[i] != _NEWLINE:
        i += 1
    return i


@njit(cache=True, nogil=True)
def fill_columns(text, fields, firsts, quote, out, offsets, valid):  # type: ignore[no-untyped-def]
    """Write the fields of rows column by column to `out`, with a doubled quote as one.

    Parameters
    ----------
    text : uint8[n]
    fields : int32[f, 3]
        Begin, end and doubled quotes of the fields.
    firsts : int64[rows]
        Number of the first field of each row.
    quote
        The quote.
    out : uint8[m]
        Receives the values; it must have room for them.
    offsets : int32[columns, rows + 1]
        Receives the places in `out` at which values begin, and the end of each column.
    valid : uint8[columns, rows]
        Receives 1 for each value that is not empty.
    """
    place, rows = 0, len(firsts)
    for column in range(len(offsets)):
        for row in range(rows):
            field = firsts[row] + column
            i, end = fields[field, 0], fields[field, 1]
            offsets[column, row] = place
            valid[column, row] = end > i
            if fields[field, 2] == 0:
                for k in range(end - i):
                    out[place + k] = text[i + k]
                place += end - i
            else:
                while i < end:
                    out[place] = text[i]
                    place += 1
                    i += 2 if text[i] == quote else 1
        offsets[column, rows] = place


@njit(cache=True, nogil=True)
def copy_texts(text, begins, ends, out):  # type: ignore[no-untyped-def]
    """Write the texts between `begins` and `ends` to `out`, one behind the other."""
    place = 0
    for row in range(len(begins)):
        begin, length = begins[row], ends[row] - begins[row]
        for k in range(length):
            out[place + k] = text[begin + k]
        place += length
