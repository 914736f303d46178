"""Removes personal data from texts: e-mail and IP addresses, phone, card and account numbers.

Patterns find what looks like such data; checksums and ranges keep titles and years ("2001: A Space Odyssey (1968)").
Names and addresses of streets are not found.
"""

import ipaddress
import re
from collections.abc import Callable

_EMAIL = re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}(?![\w-])")
_CARD = re.compile(r"(?<![\w-])(?:4|5[1-5]|2[2-7]|3[04-8]|6)(?:[ -]?\d){11,18}(?![\w-])")
_IBAN = re.compile(r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}", re.IGNORECASE)
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:])[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?![\w:])", re.IGNORECASE)
_PHONE = re.compile(
    r"(?<![\w.,-])(?:"
    r"(?:\+|00)[1-9](?:[ ()/.-]{0,2}\d){6,14}"  # with a country code
    r"|\(\d{3}\) ?\d{3}[ .-]?\d{4}|\d{3}([.-])\d{3}\1\d{4}"  # North America
    r"|0[1-9](?:[ /.-]?\d){7,9}"  # with a trunk prefix
    r")(?![\w-])"
)
_YEAR = re.compile(r"(?:18|19|20)\d\d")
# ISO 13616: the length of an IBAN by country (SWIFT's IBAN Registry).
_LENGTHS = {
    country: int(length)
    for length, countries in {
        "15": "NO",
        "16": "BE",
        "18": "DK FI FO GL NL SD",
        "19": "MK SI",
        "20": "AT BA EE KZ LT LU XK",
        "21": "CH HR LI LV",
        "22": "BG BH CR DE GB GE IE ME RS VA",
        "23": "AE GI IL IQ TL",
        "24": "AD CZ ES MD PK RO SA SE SK TN VG",
        "25": "LY PT ST",
        "26": "IS TR",
        "27": "FR GR IT MC MR SM",
        "28": "AL AZ BY CY DO GT HU LB PL SV",
        "29": "BR EG PS QA UA",
        "30": "JO KW MU",
        "31": "MT SC",
        "32": "LC",
    }.items()
    for country in countries.split()
}


def redact_personal_data(text: str) -> str:
    """Return the text with personal data replaced by what they are, such as `[e-mail]`."""
    text = _EMAIL.sub("[e-mail]", text)
    text = _IBAN.sub(_redact_iban, text)
    text = _CARD.sub(_if(_is_card, "[card number]"), text)
    text = _IPV4.sub(_if(_is_address, "[IP address]"), text)
    text = _IPV6.sub(_if(_is_address, "[IP address]"), text)
    return _PHONE.sub(_if(_is_phone, "[phone number]"), text)


def _if(is_found: Callable[[str], bool], mask: str) -> Callable[[re.Match[str]], str]:
    return lambda match: mask if is_found(match[0]) else match[0]


def _redact_iban(match: re.Match[str]) -> str:
    """Replace as many characters as an IBAN of the country has; words that follow are kept."""
    found = match[0]
    length, end = _LENGTHS.get(found[:2].upper(), 0), 0
    for end, character in enumerate(found, start=1):  # noqa: B007  (used after the loop)
        length -= character != " "
        if length == 0:
            break
    follows = found[end : end + 1]
    if length or follows.isalnum() or not _is_iban(found[:end].replace(" ", "").upper()):
        return found
    return f"[IBAN]{found[end:]}"


def _is_iban(iban: str) -> bool:
    """Return whether the check digits are right (ISO 7064, MOD 97-10)."""
    return int("".join(str(int(character, 36)) for character in iban[4:] + iban[:4])) % 97 == 1


def _is_card(text: str) -> bool:
    """Return whether 12 to 19 digits pass Luhn's check (ISO/IEC 7812-1, annex B)."""
    digits = [int(character) for character in reversed(text) if character.isdigit()]
    doubled = (sum(divmod(2 * digit, 10)) for digit in digits[1::2])
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


def _is_address(text: str) -> bool:
    try:
        return not ipaddress.ip_address(text).is_unspecified
    except ValueError:
        return False


def _is_phone(text: str) -> bool:
    """Return whether the groups of digits after the first are not only years ("007 1962 2006")."""
    _, *groups = re.findall(r"\d+", text)
    return not (groups and all(_YEAR.fullmatch(group) for group in groups))
