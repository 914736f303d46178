"""Tokens of catalog lines in each place: first in a completion or later, before a newline or at the end.

Tokenizers merge over borders: `)\\n` is one token of most large vocabularies, and a beginning of text may take a space
before it. So the tokens of a line are cut out of a text that has them in place, not made from the line alone.

An item token is a whole line with its newline. It is the same in all places, so a list of item tokens ends with a
newline: N items are N tokens. It stands for lines of lists and for mentions (`prompt_tokens`) alone. A tokenizer's own
calls would also find it where any line ends so, as in `born in 1984` or in a chat template: here they are not used.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tokenizers import AddedToken, Encoding, Tokenizer

from convrec.data.catalog import Catalog
from convrec.project.errors import InputError

Tokens = tuple[int, ...]

_LINE = re.compile(r"(.+)\n?")
_HOLD = "\x01"  # around the number of an item token, in a text that is not yet encoded
_HELD = re.compile(rf"{_HOLD}(\d+){_HOLD}")
_PLAIN = "convrec_plain"  # a tokenizer's attribute
_BATCH = 2048  # lines tokenised at once


class LineTokens(NamedTuple):
    """The token ids of one line in each of its places; the newline belongs to the line before it."""

    first_before_newline: Tokens
    first_at_end: Tokens
    later_before_newline: Tokens
    later_at_end: Tokens


def hold_lines(text: str, tokenizer: Any) -> str:
    """Return a list, for `encode`, as a model writes it: with the item tokens of its lines held."""

    def held(line: re.Match[str]) -> str:
        token = item_token(line[1], tokenizer)
        return line[0] if token is None else hold(token)

    return _LINE.sub(held, without_holds(text))


def hold(token: int) -> str:
    """Return what stands for an item token in a text for `encode`."""
    return f"{_HOLD}{token}{_HOLD}"


def without_holds(text: str) -> str:
    """Return the text without the sign of `hold`, a control character, which people do not write."""
    return text.replace(_HOLD, "")


def encode(texts: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Return the tokens of texts: item tokens where they are held, the model's other tokens elsewhere."""
    pieces = [_HELD.split(text) for text in texts]
    plain = iter(_encode(tokenizer, [piece for own in pieces for piece in own[::2]]))
    runs = [[[int(piece)] if at % 2 else next(plain).ids for at, piece in enumerate(own)] for own in pieces]
    return [[token for run in own for token in run] for own in runs]


def item_token(line: str, tokenizer: Any) -> int | None:
    """Return the token that is a whole catalog line with its newline; None if the tokenizer has none."""
    token: int | None = tokenizer.backend_tokenizer.token_to_id(f"{line}\n") if line else None
    return token


def item_tokens(tokenizer: Any) -> dict[str, int]:
    """Return the item tokens of a tokenizer, by their lines."""
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder().items()
    written = {token: own.content for token, own in added if not own.special}
    return {text[:-1]: token for token, text in written.items() if text.endswith("\n") and not text[0].isspace()}


def add_tokens(tokenizer: Any, lines: Sequence[str]) -> list[int]:
    """Add an item token for each line that has none; return the indices of these lines."""
    new = [index for index, line in enumerate(lines) if item_token(line, tokenizer) is None]
    tokenizer.add_tokens([AddedToken(f"{lines[index]}\n", normalized=False) for index in new])
    vars(tokenizer).pop(_PLAIN, None)
    return new


def keep_up(tokenizer: Any, catalog: Catalog) -> Catalog | None:
    """Add tokens for items that are new to a tokenizer with item tokens; return the catalog if there were any."""
    has_new = bool(item_tokens(tokenizer)) and bool(add_tokens(tokenizer, [str(item) for item in catalog.items]))
    return catalog if has_new else None


def completion_tokens(text: str, tokenizer: Any, context: str) -> list[int]:
    """Return the tokens of a list that follows `context`, and the end token: what a model is to write.

    Where a token spans the border to the context, they are those of the text alone, as in the constraint.
    """
    first, sign, others = hold_lines(text, tokenizer).partition(_HOLD)
    in_place, alone, rest = *_encode(tokenizer, [context + first, first]), encode([sign + others], tokenizer)[0]
    (own,) = _pieces(in_place, [len(context), len(context + first)])
    return [*(alone.ids if own is None else own), *rest, tokenizer.eos_token_id]


def tokenize_lines(lines: Sequence[str], tokenizer: Any, context: str) -> list[LineTokens]:
    """Return the tokens of every line (see `tokenize_batches`)."""
    return [row for batch in tokenize_batches(lines, tokenizer, context) for row in batch]


def tokenize_batches(lines: Sequence[str], tokenizer: Any, context: str) -> Iterator[list[LineTokens]]:
    """Yield, some lines at a time, their tokens in the place of each kind, in a completion that follows `context`.

    Where a token spans the border of a line, the line's tokens are those of the line alone. Raises `InputError` for an
    empty line, one with a newline, one that stands twice, and one that its tokens do not decode to.
    """
    _check_lines(lines)
    for first in range(0, len(lines), _BATCH):
        batch = lines[first : first + _BATCH]
        tokens = [item_token(line, tokenizer) for line in batch]
        others = [line for line, own in zip(batch, tokens, strict=True) if own is None]
        as_text = iter(_written(others, tokenizer, context))
        found = [next(as_text) if own is None else LineTokens(*[(own,)] * 4) for own in tokens]
        _check_tokens(batch, found, tokenizer)
        yield found


def _written(lines: Sequence[str], tokenizer: Any, context: str) -> list[LineTokens]:
    """Return the tokens of lines that have no item token."""
    places = _in_place(lines, tokenizer, context)
    if any(None in row for row in places):
        alone = _alone(lines, tokenizer)
        places = [[own or other for own, other in zip(*pair, strict=True)] for pair in zip(places, alone, strict=True)]
    return [LineTokens(*row) for row in places]  # type: ignore[arg-type]


def _check_lines(lines: Sequence[str]) -> None:
    seen: dict[str, int] = {}
    for index, line in enumerate(lines):
        if not line or "\n" in line:
            raise InputError(f"catalog item {index}, {line!r}: an item is one line; give it a title without newlines")
        if line in seen:
            raise InputError(f"catalog items {seen[line]} and {index} are both {line!r}; remove one of the two")
        seen[line] = index


def _in_place(lines: Sequence[str], tokenizer: Any, context: str) -> list[list[Tokens | None]]:
    """Return the tokens of each line as `LineTokens` has them, None where a token spans a border."""
    start = len(context)
    lists = _encode(tokenizer, [f"{context}{line}\n{line}\n{line}" for line in lines])
    single = _encode(tokenizer, [context + line for line in lines])
    rows = []
    for line, of_list, of_line in zip(lines, lists, single, strict=True):
        size = len(line) + 1
        first, later, last = _pieces(of_list, [start, start + size, start + 2 * size, start + 3 * size - 1])
        (only,) = _pieces(of_line, [start, start + size - 1])
        rows.append([first, only, later, last])
    return rows


def _alone(lines: Sequence[str], tokenizer: Any) -> list[list[Tokens]]:
    before_newline = [tuple(encoding.ids) for encoding in _encode(tokenizer, [f"{line}\n" for line in lines])]
    at_end = [tuple(encoding.ids) for encoding in _encode(tokenizer, lines)]
    return [[*pair, *pair] for pair in zip(before_newline, at_end, strict=True)]


def _plain(tokenizer: Any) -> Tokenizer:
    """Return the tokenizer without its item tokens, the others with the same ids; it is made once."""
    if _PLAIN not in vars(tokenizer):
        plain, items = tokenizer.backend_tokenizer, set(item_tokens(tokenizer).values())
        if items:
            parts = json.loads(plain.to_str())
            last = max((own["id"] for own in parts["added_tokens"] if own["id"] not in items), default=-1)
            # Ids are given in order: an item token before another one stays, as a text that does not occur.
            parts["added_tokens"] = [
                own | ({"content": _HOLD + own["content"]} if own["id"] in items else {})
                for own in parts["added_tokens"]
                if own["id"] <= last
            ]
            plain = Tokenizer.from_str(json.dumps(parts))
        setattr(tokenizer, _PLAIN, plain)
    found: Tokenizer = getattr(tokenizer, _PLAIN)
    return found


def has_item_tokens(tokenizer: Any) -> bool:
    """Return whether a tokenizer has item tokens; it is found out once."""
    return _plain(tokenizer) is not tokenizer.backend_tokenizer


def plain_offsets(text: str, tokenizer: Any) -> list[tuple[int, int]]:
    """Return the places (characters) of a text's tokens, none of which is an item token."""
    return _encode(tokenizer, [text])[0].offsets


def _encode(tokenizer: Any, texts: Sequence[str]) -> list[Encoding]:
    """Return the tokens of texts with their places, none of which is an item token.

    Not by the tokenizer's call, most of whose time goes into lists.
    """
    backend = _plain(tokenizer)
    backend.no_truncation()  # the tokenizer's calls set both again as they need them
    backend.no_padding()
    return backend.encode_batch(list(texts), add_special_tokens=False)


def _pieces(encoding: Encoding, borders: list[int]) -> list[Tokens | None]:
    """Return the tokens between each two borders (characters), None where one of them reaches over a border."""
    ids, offsets = encoding.ids, encoding.offsets
    starts = [start for start, _ in offsets]
    cuts = [bisect_left(starts, border) for border in borders[:-1]] + [len(ids)]
    pieces: list[Tokens | None] = []
    for (low, high), (begin, end) in zip(pairwise(cuts), pairwise(borders), strict=True):
        reaches_in = low > 0 and offsets[low - 1][1] > begin
        reaches_out = high > low and offsets[high - 1][1] > end
        pieces.append(None if reaches_in or reaches_out or low == high else tuple(ids[low:high]))
    return pieces


def _decode(tokenizer: Any, rows: list[list[int]]) -> list[str]:
    if tokenizer.clean_up_tokenization_spaces:
        return tokenizer.batch_decode(rows, skip_special_tokens=True)
    return tokenizer.backend_tokenizer.decode_batch(rows, skip_special_tokens=True)  # without lists made again


def _check_tokens(lines: Sequence[str], rows: Sequence[LineTokens], tokenizer: Any) -> None:
    """Raise `InputError` naming the lines that their tokens do not decode to."""
    texts = [
        _decode(tokenizer, [[*row.first_before_newline, *row.later_at_end] for row in rows]),
        _decode(tokenizer, [list(row.first_at_end) for row in rows]),
        _decode(tokenizer, [[*row.first_before_newline, *row.later_before_newline] for row in rows]),
    ]
    ends = ["\n" if row.first_at_end == row.first_before_newline else "" for row in rows]  # of an item token
    wrong = [
        line
        for line, end, *decoded in zip(lines, ends, *texts, strict=True)
        if decoded != [f"{line}\n{line}{end}", f"{line}{end}", f"{line}\n{line}\n"]
    ]
    if wrong:
        shown = ", ".join(repr(line) for line in wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
        raise InputError(
            f"catalog item {shown}: the tokenizer cannot write it to the letter; set data.title_form = NFKC if it "
            "changes signs such as ³ and ½, remove special tokens from the title, or take another model"
        )
