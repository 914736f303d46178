"""The period of a split: a month, or a span of days."""

import datetime
from typing import Annotated, Any, NamedTuple

from pydantic import PlainSerializer, PlainValidator

_REMEDY = "give a month such as 2022-03, or the first and the last day, as in 2022-04-08/2022-04-14"


class Period(NamedTuple):
    """The days from `first` to the day before `end`."""

    first: datetime.date
    end: datetime.date

    @classmethod
    def parse(cls, value: Any) -> "Period":
        """Return the period of a text: `2022-03`, or `2022-04-08/2022-04-14` with both days included.

        Raises `ValueError` with the value and the remedy.
        """
        first_day, _, last_day = str(value).partition("/")
        try:
            if not last_day:
                return cls.of_month(datetime.date.fromisoformat(f"{first_day}-01"))
            first, last = datetime.date.fromisoformat(first_day), datetime.date.fromisoformat(last_day)
        except ValueError:
            raise ValueError(f"{str(value)!r:.40} is neither a month nor a span of days; {_REMEDY}") from None
        if last < first:
            raise ValueError(f"{value!r} ends before it begins; {_REMEDY}")
        return cls(first, last + datetime.timedelta(days=1))

    @classmethod
    def of_month(cls, day: datetime.date) -> "Period":
        """Return the month of a day."""
        first = day.replace(day=1)
        return cls(first, (first + datetime.timedelta(days=31)).replace(day=1))

    def before(self) -> "Period":
        """Return the period that ends where this one begins: of a month the month before, else as many days."""
        last = self.first - datetime.timedelta(days=1)
        return Period.of_month(last) if self._is_month() else Period(self.first - (self.end - self.first), self.first)

    def _is_month(self) -> bool:
        return self == Period.of_month(self.first)

    def __str__(self) -> str:
        if self._is_month():
            return f"{self.first:%Y-%m}"
        return f"{self.first}/{self.end - datetime.timedelta(days=1)}"


# As a type of params.yaml: read from its text, and dumped as text.
PeriodText = Annotated[
    Period, PlainValidator(Period.parse, json_schema_input_type=str), PlainSerializer(str, return_type=str)
]
