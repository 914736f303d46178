import datetime

import pytest

from convrec.project.config.period import Period

_day = datetime.date.fromisoformat


@pytest.mark.parametrize(
    ("text", "first", "end", "before"),
    [
        ("2022-03", "2022-03-01", "2022-04-01", "2022-02"),
        ("2021-12", "2021-12-01", "2022-01-01", "2021-11"),
        ("2022-04-08/2022-04-14", "2022-04-08", "2022-04-15", "2022-04-01/2022-04-07"),
        ("2021-12-30/2022-01-05", "2021-12-30", "2022-01-06", "2021-12-23/2021-12-29"),
        ("2022-03-02/2022-03-31", "2022-03-02", "2022-04-01", "2022-01-31/2022-03-01"),
    ],
)
def test_a_period_has_its_days_its_text_and_the_period_before(text, first, end, before):
    period = Period.parse(text)
    assert period == (_day(first), _day(end))
    assert str(period) == text
    assert str(period.before()) == before and period.before().end == period.first


def test_the_days_of_a_whole_month_are_the_month():
    for month in range(1, 13):
        whole = Period.parse(f"2024-{month:02d}")
        assert (whole.end - whole.first).days == (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]
        span = Period.parse(f"{whole.first}/{whole.end - datetime.timedelta(days=1)}")
        assert span == whole and str(span) == f"2024-{month:02d}"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("2022-04-14/2022-04-08", "'2022-04-14/2022-04-08' ends before it begins; give a month such as 2022-03, or"),
        ("2022-13", "'2022-13' is neither a month nor a span of days; give a month such as 2022-03, or the first"),
        ("2022-02-28/2022-02-30", "'2022-02-28/2022-02-30' is neither a month nor a span of days"),
        (_day("2022-04-08"), "'2022-04-08' is neither a month nor a span of days"),  # as YAML reads a day
        ("2022-04-08/2022-04-14\n", "is neither a month nor a span of days"),
        ("٢٠٢٢-04", "is neither a month nor a span of days"),
        ("x" * 1000, "'x{39} is neither"),
    ],
)
def test_what_is_no_period_is_named_with_the_remedy(value, message):
    with pytest.raises(ValueError, match=message):
        Period.parse(value)
