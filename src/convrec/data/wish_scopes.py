"""Denials by their scope: the polarity of what the catalog knows in a message (NegEx, Chapman et al., 2001)."""

from dataclasses import dataclass
from itertools import takewhile

from convrec.data.wish_marks import MARKS, Token, fillers, nouns, single, words

REACH = 5  # words without a meaning between a denial and what it denies
ENDS = {".", "!", ";", "?"}
ARTICLES = {"a", "an", "some", "something", "anything"}
DENIED = {"deny", "hated", "doubt"}
_GOES_ON = {"or", "nor", "anything", "nothing", "no", "any"}  # between a value and a limit that is denied, too
_BEFORE_IT = {",", "?", ":", "but", "and", "definitely", "simply", "though"}  # before what stands behind a value
_TAKING = {"no", "way", "hate", "stand", "interested", "fan", "not"}
_KEPT = {("deny", "seen"), ("again", "seen"), ("less", "not"), ("neutral", "hated")}  # scopes that a cue leaves alone
_SCOPES = {"against": "deny", "not": "deny"}


@dataclass(eq=False)
class Mark:
    """A token that the catalog knows at a place, and what its words make of it."""

    token: Token
    at: int
    polarity: str = "want"  # welcome, deny, hated, doubt, less, again, forget, only, seen, neutral
    is_joined: bool = False  # to the mark before it: what is denied has both


def polarities(tokens: list[Token]) -> list[Mark]:
    """Return what the catalog knows in the tokens, each with its polarity."""
    marks: list[Mark] = []
    scope, last, gap = "", None, 0  # the polarity of what follows, the last mark in it, words since it began
    for at, token in enumerate(tokens):
        cue, before, behind = token.cue, tokens[at - 1].word if at else "", tokens[at + 1 : at + 3]
        rest = takewhile(lambda own: own.kind != "sign", tokens[at + 1 :])
        if cue == "statement":
            cue = "not" if _is_asked_item(tokens[:at]) else "neutral"
        is_end = not behind or behind[0].kind == "sign"
        if token.kind in MARKS:
            mark = Mark(token, at, scope or "want")
            if last is not None:
                link = _link(tokens[last.at + 1 : at], behind)
                link = "listed" if link == "joined" and token.kind == last.token.kind == "title" else link
                if token.kind == "limit" != last.token.kind and link in ("listed", "comma"):  # "no war, and after 2010"
                    said = {one.word for one in tokens[last.at + 1 : at]}
                    link = link if said & _GOES_ON else ""
                is_sure = scope != "deny" or token.kind == last.token.kind == "title" or _is_listed(tokens, last.at, at)
                mark.is_joined = (
                    link == "joined" and last.polarity in DENIED and "third" not in (token.kind, last.token.kind)
                )
                mark.polarity = {
                    "joined": last.polarity if mark.is_joined else "want",
                    "listed": scope,
                    "comma": scope if is_sure else "doubt",
                }.get(link, "want")
                scope = scope if link else ""
            if mark.polarity in DENIED and _is_of_a_person(token, behind, before):
                mark.polarity = "neutral"
            is_aside = last is None and gap and (before,) in words()["attaches"]  # "no trilogies with Tom Hanks"
            if mark.polarity == "deny" and (is_aside or (behind and behind[0].word in ("unless", "like"))):
                mark.polarity = "doubt"
            last = mark if scope else None
            marks.append(mark)
        elif token.kind == "sign":
            is_answered = token.word == "?" and bool(behind) and behind[0].cue.startswith("behind.")
            is_heading = token.word == ":" and scope and last is None and not gap  # "seen: Heat, Alien"
            if not is_answered and not is_heading and (token.word in ENDS or last is None or token.word not in ",/&"):
                scope, last = "", None
        elif cue == "behind.liked":
            for mark in marks[-2:]:
                if mark.polarity == "seen" and at - mark.at <= 2 * REACH and scope in ("", "seen"):
                    mark.polarity = "want"
        elif cue.startswith("behind."):
            # What it denies may stand behind it.
            is_verb = token.word.split()[-1] in _TAKING and token.word != "a no" and not is_end
            is_denied = cue == "behind.doubt" and scope in DENIED and last is None  # "that is not boring"
            is_done = not is_verb and not is_denied and _behind(marks, tokens, at, cue[7:])
            if cue == "behind.doubt":
                token.kind = "cue" if is_done else "word"
                if token.word.endswith(" too"):
                    scope, last, gap = "less", None, 0
            else:
                scope, last, gap = cue[7:] if not is_done and not is_end and cue != "behind.want" else "", None, 0
        elif (
            (cue in ("only", "against", "hated") and is_end)
            or (cue == "seen" and not any(own.kind in MARKS for own in rest))
        ) and _behind(marks, tokens, at, cue if cue in ("only", "seen") else "deny"):
            scope = ""
        elif cue == "not" and is_end and (not behind or token.word in ("no", "not")):
            if before in ("?", ":") or (token.word == "no" and marks and marks[-1].at == at - 1):
                _behind(marks, tokens, at, "deny")
        elif cue in ("not", "against", "hated", "less", "again", "forget", "only", "seen", "neutral"):
            if (scope, cue) in _KEPT and last is None and not gap:
                continue
            is_double = cue in ("against", "hated") and scope == "deny" and last is None and gap <= 1
            if token.word == "without" and scope in ("deny", "neutral") and last is None:
                scope = ""  # "no evening without a western"
            elif is_double:  # "do not hate", "not anything but"
                scope = "only" if token.word.startswith("anything") else "again"
            elif (
                token.word == "not"
                and before == "but"
                and marks
                and marks[-1].polarity in ("deny", "hated")
                and marks[-1].token.kind == "value"
            ):
                scope = "neutral"  # "I dislike drama, but not horror"
            else:
                scope = "doubt" if cue in ("not", "against") and before in single("doubtful") else _SCOPES.get(cue, cue)
            last, gap = None, 0
        elif cue == "ditto":
            is_same = bool(marks) and before != "the" and marks[-1].polarity in DENIED | {"less", "seen"}
            scope, last, gap = marks[-1].polarity if is_same else "", None, 0
        elif cue == "aside":
            scope, last = "", None
        elif (
            token.word in single("degree") and last is None and (scope in DENIED or (token.word == "too" and not scope))
        ):
            scope = "less"
        elif token.word == "than" and marks and marks[-1].at == at - 1:
            scope, last, gap = "neutral" if marks[-1].token.kind == "third" else "less", None, 0
        elif cue == "asks" and before == "no" and token.word.split()[0] in ("make", "give", "show"):
            scope, last = "", None  # "no, make it the 90s"
        elif cue in ("asks", "ends", "else") and before not in ("or", "nor"):
            if (
                last is not None
                or scope in ("less", "seen", "only", "again")
                or (cue == "ends" and (gap or token.word in ("but", "because")))
                or (gap and token.word.startswith("that"))
            ):
                scope, last = "", None
        elif scope and last is None and token.word not in fillers():
            gap += 1
            if gap > REACH or scope == "only":
                scope = ""
    return marks


def _is_asked_item(tokens: list[Token]) -> bool:
    """Return whether tokens end in what is asked for, such as "something", "anything good" or "a comedy"."""
    last = [token for token in tokens if token.word != ","][-2:]
    is_thing = bool(last) and (last[-1].kind == "value" or last[-1].word in nouns())
    return is_thing or any(token.word in ("something", "anything") for token in last)


def _link(between: list[Token], behind: list[Token]) -> str:
    """Return how a mark follows another one in a scope: joined, listed, comma, or not at all."""
    said = [token.word for token in between]
    rest = said[1:] if said and said[0] in nouns() else said
    if not said or tuple(rest) in words()["attaches"]:
        return "joined"
    plain = [
        word
        for word in rest
        if word not in ("any", "no", "even", "more", "the", "from", "of", "with", "about", "those", "not", "way")
    ]
    plain = plain[1:] if plain[:1] == [","] and plain[1:] else plain
    if plain[:1] and plain[0] in ("or", "nor", "/", "&") and set(plain[1:]) <= ARTICLES:
        return "listed"
    if plain == ["and"] or said[-1:] == [","]:
        if behind and behind[0].word in ("would", "is", "are", "sounds"):
            return ""  # a new clause begins
        return "listed" if plain == ["and"] else "comma"
    return "comma" if said[-2:-1] == [","] and said[-1] in ("any", "no", "even") else ""


def _is_listed(tokens: list[Token], last: int, at: int) -> bool:
    """Return whether marks with a comma between are of a list: of three, or with a conjunction further on."""
    before = [token for token in tokens[max(0, last - 3) : last] if token.word == "," or token.kind in MARKS]
    if len(before) > 1 and before[-1].word == ",":
        return True
    behind = (token for token in tokens[at + 1 : at + 40] if token.word != "," and token.word not in nouns())
    following = next(behind, None)
    return following is not None and (following.kind in MARKS or following.word in ("or", "nor", "and", "etc"))


def _is_of_a_person(token: Token, behind: list[Token], before: str) -> bool:
    """Return whether a denied value belongs to a person or an occasion, as in "no horror fan" or "without the kids"."""
    if behind and behind[0].word in single("persons"):
        return before.split()[-1:] not in (["a"], ["an"], ["not"], ["big"])
    is_child = token.said in ("kids", "kid", "children", "child", "family")
    return is_child and not (behind and behind[0].word in nouns()) and (bool(behind) or before not in ("for", "no"))


def _behind(marks: list[Mark], tokens: list[Token], at: int, polarity: str) -> bool:
    """Change the polarity of the list right before a cue; of all within reach, where something was bad."""
    place = at
    for mark in reversed(marks):
        between = tokens[mark.at + 1 : place]
        if polarity == "doubt":
            is_near = at - mark.at <= REACH + 1 and not any(
                token.word in ENDS or (token.word == "but" and " it " not in f" {tokens[at].word} ")
                for token in between
            )
        elif place == at:
            is_near = all(token.word in fillers() or token.word in _BEFORE_IT for token in between)
        else:
            link = _link(between, [])
            is_near = link in ("listed", "joined") or (link == "comma" and _is_listed(tokens, mark.at, place))
        is_denied_before = (
            mark.polarity in DENIED | {"less"} and polarity == "want" and not tokens[at].word.startswith("but")
        )
        is_near = is_near and (polarity != "seen" or mark.token.kind == "title")
        if not is_near or is_denied_before or (polarity == "doubt" and mark.polarity != "want"):
            break
        names = {"want": "welcome", "doubt": "hated" if mark.token.kind == "title" else "doubt"}
        mark.polarity, place = names.get(polarity, polarity), mark.at
    return place < at
