import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convrec.data.sources.synthetic import embedded_rows
from convrec.feedback.personal_data import redact_personal_data


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("mail a.b+films@mail.example.co.uk!", "mail [e-mail]!"),
        ("<ünal@exämple.de>", "<[e-mail]>"),
        ("pay with 4111 1111 1111 1111 today", "pay with [card number] today"),
        ("5555-5555-5555-4444 or 378282246310005", "[card number] or [card number]"),
        ("GB82 WEST 1234 5698 7654 32 thanks", "[IBAN] thanks"),
        ("my account de89370400440532013000.", "my account [IBAN]."),
        ("FR14 2004 1010 0505 0001 3M02 606", "[IBAN]"),
        ("from 192.168.0.17:8080", "from [IP address]:8080"),
        ("from 203.0.113.9.", "from [IP address]."),
        ("2001:db8::ff00:42:8329 and ::1", "[IP address] and [IP address]"),
        ("call +49 (0)30 123456-78", "call [phone number]"),
        ("call 0044 20 7946 0958 now", "call [phone number] now"),
        ("020 7946 0958 / 06 12 34 56 78", "[phone number] / [phone number]"),
        ("(555) 123-4567, 555-123-4567, 555.123.4567", "[phone number], [phone number], [phone number]"),
        ("0171/1234567", "[phone number]"),
    ],
)
def test_personal_data_are_replaced(text, redacted):
    assert redact_personal_data(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "2001: A Space Odyssey (1968)",
        "1917 (2019), 300 (2006), 1984 (1984), 2012 (2009)",
        "12 Angry Men (1957) and 12 Years a Slave (2013)",
        "(500) Days of Summer (2009)",
        "films of 1977 1980 1983 1999 2002 2005 and 2015 2017 2019",
        "2201 2301 2401 2501 is no card: the checksum differs",
        "the 1990-2000s, 1999-2001, 1939–1945",
        "007: 1962 2006 2021, or 007 1962 2006",
        "3:10 to Yuma (2007), 11:14 (2003), 8½ (1963), THX 1138 (1971), Se7en, $9.99, 10,000 BC",
        "4 8 15 16 23 42",
        "imdb tt0111161, item 0000000123456, version 1.2.3, at 12:30:45",
        "Blade Runner 2049 (2017) 4K 2160p x265 at 23.976 fps",
        "GB82 WEST 1234 5698 7654 33",  # wrong check digits
        "4111 1111 1111 1112",  # fails Luhn's check
        "256.1.1.1 and 999.999.999.999",
        "@username and a @ b, 50% @ 2x, Mission: Impossible::rated",
        "",
    ],
)
def test_titles_years_and_numbers_stay(text):
    assert redact_personal_data(text) == text


def test_every_title_of_the_embedded_catalog_stays():
    titles = [f"{row['title']} ({row['year']})" for row in embedded_rows()]
    assert len(titles) > 100 and [redact_personal_data(title) for title in titles] == titles


@given(st.text())
def test_redacting_twice_changes_nothing_more(text):
    once = redact_personal_data(text)
    assert redact_personal_data(once) == once


@pytest.mark.parametrize("piece", ["a", "1", "1 ", "a@", "a.", ":", "1.", "+1(", "DE11 ", "0-"])
def test_long_texts_take_no_long_time(piece):
    start = time.process_time()
    redact_personal_data(piece * (100_000 // len(piece)))
    assert time.process_time() - start < 2
