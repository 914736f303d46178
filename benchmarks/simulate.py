"""Simulated users of the embedded world talk to a running service over HTTP.

    python -m benchmarks.simulate --url http://127.0.0.1:8000 --users 40 --days 14

It prints a table by week, and writes a row for each answer: answer, user, simulated time, version, arm, and what was
accepted. docs/online-experiments.md describes the users.
"""

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import polars as pl
from sqlalchemy import Column, Connection, Engine, bindparam, select

from benchmarks.simulated_users import Audience, Visit
from convrec.project.atomic import check_target
from convrec.project.config.params import load_params
from convrec.project.errors import InputError, Unavailable
from convrec.project.redaction import redact
from convrec.service.feedback.database import (
    answers,
    checked_url,
    create_tables,
    events,
    open_engine,
    shown_url,
    transaction,
)

logger = logging.getLogger(__name__)

CONCURRENT = 64  # requests at a time; the service decodes what waits in one batch
_TRIES, _LONGEST_WAIT = 8, 30.0  # of a request that the service refuses for now; seconds between two tries
_TIMEOUT = 120.0  # seconds for an answer
_ARRIVAL, _POLL = 60.0, 0.1  # seconds until the service has delivered its answers to the database
_CHUNK = 500  # ids of one `IN (...)`; SQLite limits the parameters of a statement
_SCHEMA: dict[str, Any] = {
    "answer_id": pl.String,
    "user_id": pl.String,
    "time": pl.Datetime("us", "UTC"),
    "version": pl.String,
    "arm": pl.String,
    "num_items": pl.Int64,
    "num_examined": pl.Int64,
    "num_accepted": pl.Int64,
    "first_accepted": pl.Int64,
}


class Plan(NamedTuple):
    """Who talks to the service when; `feedback` is the URL of its database, whose times become the simulated ones."""

    url: str
    num_users: int
    num_days: int
    start: date
    num_items: int = 20
    key: str | None = None
    feedback: str | None = None


def simulate(plan: Plan, audience: Audience) -> pl.DataFrame:
    """Return one row for each visit.

    Raises `InputError` if the service rejects a request, records no feedback or shows other items, and `Unavailable` if
    it does not answer.
    """
    return asyncio.run(_simulate(plan, audience))


async def _simulate(plan: Plan, audience: Audience) -> pl.DataFrame:
    rows: list[dict[str, Any]] = []
    known = {item.id for item in audience.catalog.items}
    headers = {"Authorization": f"Bearer {plan.key}"} if plan.key else {}
    limits = httpx.Limits(max_connections=CONCURRENT)
    async with httpx.AsyncClient(base_url=plan.url, headers=headers, timeout=_TIMEOUT, limits=limits) as client:
        gate = asyncio.Semaphore(CONCURRENT)

        async def visit(one: Visit) -> dict[str, Any]:
            async with gate:
                return await _visit(client, one, plan.num_items, known)

        for number in range(plan.num_days):
            day = plan.start + timedelta(days=number)
            done = await asyncio.gather(*map(visit, audience.visits(plan.num_users, day)))
            rows += done
            if plan.feedback is not None:
                recorded = {row["answer_id"]: Simulated(row["time"], row["num_accepted"]) for row in done}
                await asyncio.to_thread(move_to, plan.feedback, recorded)
            accepted = sum(row["num_accepted"] for row in done)
            logger.info("%s: %d answers, %.2f accepted items per answer", day, len(done), accepted / len(done))
    return pl.DataFrame(rows, schema=_SCHEMA)


async def _visit(client: httpx.AsyncClient, visit: Visit, num_items: int, known: set[str]) -> dict[str, Any]:
    question = {"messages": visit.messages, "n": num_items, "or_fewer": True, "user_id": visit.user_id}
    answer = await _post(client, "/recommend", question)
    if answer.get("answer_id") is None:
        raise InputError(f"{client.base_url}: the service records no feedback; start it without `--feedback none`")
    items = [row["item_id"] for row in answer["recommendations"]]
    if foreign := [item for item in items if item not in known]:
        raise InputError(
            f"{client.base_url}: item {foreign[0]!r:.60} is not a film of the embedded world; serve a model that was "
            "trained on it"
        )
    accepted = visit.accepted(items)
    for item in accepted:
        await _post(client, "/feedback", {"answer_id": answer["answer_id"], "item_id": item, "event": "accepted"})
    return {
        "answer_id": answer["answer_id"],
        "user_id": visit.user_id,
        "time": visit.time,
        "version": answer["version"],
        "arm": answer.get("arm"),
        "num_items": len(items),
        "num_examined": min(visit.num_examined, len(items)),
        "num_accepted": len(accepted),
        "first_accepted": items.index(accepted[0]) + 1 if accepted else None,
    }


async def _post(client: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON of a response; 429 and 503 are tried again after the time that the service names."""
    for number in range(_TRIES):
        try:
            response = await client.post(path, json=body)
        except httpx.HTTPError as error:
            raise Unavailable(f"{client.base_url}: no answer ({error or type(error).__name__}); start again") from error
        if response.status_code not in (429, 503):
            break
        wait = response.headers.get("Retry-After", "")
        await asyncio.sleep(min(float(wait) if wait.isdecimal() else 2.0**number, _LONGEST_WAIT))
    if response.status_code in (429, 503, 504):
        raise Unavailable(f"{client.base_url}{path}: status {response.status_code} after {number + 1} tries")
    if response.is_error:
        raise InputError(f"{client.base_url}{path}: status {response.status_code}, {response.text[:300]}")
    return response.json()


class Simulated(NamedTuple):
    """The simulated time of an answer, and the number of its events."""

    time: datetime
    num_events: int


def move_to(url: str, recorded: Mapping[str, Simulated], patience: float = _ARRIVAL) -> None:
    """Give each answer in the feedback database its simulated time, and keep the time from the answer to its events.

    A service stamps answers with the present time, and `monitor`, `refresh` and the experiment read the times from the
    database. Waits until all these answers and events have arrived. Raises `Unavailable` if some are missing after
    `patience` seconds, or the database is away.
    """
    engine = open_engine(checked_url(url))
    deadline, ids = time.monotonic() + patience, list(recorded)
    try:
        create_tables(engine)
        for chunk in (ids[first : first + _CHUNK] for first in range(0, len(ids), _CHUNK)):
            while missing := _move({one: recorded[one] for one in chunk}, engine):
                if time.monotonic() >= deadline:
                    raise Unavailable(
                        f"--feedback {shown_url(engine.url)}: {missing} answers or events have not arrived in this "
                        f"database after {patience:.0f} s; give the database of the service"
                    )
                time.sleep(_POLL)
    finally:
        engine.dispose()


def _move(recorded: Mapping[str, Simulated], engine: Engine) -> int:
    """Move these answers and their events if all are there; return the number of missing ones."""
    with transaction(engine, is_write=True) as connection:
        query = select(answers.c.answer_id, answers.c.time).where(answers.c.answer_id.in_(recorded))
        present = {answer: at for answer, at in connection.execute(query)}
        query = select(events.c.event_id, events.c.answer_id, events.c.time).where(events.c.answer_id.in_(recorded))
        found = connection.execute(query).all()
        missing = len(recorded) + sum(one.num_events for one in recorded.values()) - len(present) - len(found)
        if missing > 0:
            return missing
        _update(connection, answers.c.answer_id, {answer: one.time for answer, one in recorded.items()})
        moved = {event: recorded[answer].time + (at - present[answer]) for event, answer, at in found}
        _update(connection, events.c.event_id, moved)
        return 0


def _update(connection: Connection, key: Column[Any], times: Mapping[str, datetime]) -> None:
    if times:
        update = key.table.update().where(key == bindparam("id")).values(time=bindparam("at"))
        connection.execute(update, [{"id": one, "at": at} for one, at in times.items()])


def weekly(visits: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each week, from the first day on: its first day, answers, users, and what was accepted.

    `per_answer` is the mean number of accepted items, `any_accepted` the share of answers with one, `empty` the number
    of answers without an item.
    """
    start = visits["time"].dt.date().min()
    days = (pl.col("time").dt.date() - pl.lit(start)).dt.total_days()
    return (
        visits.group_by((pl.lit(start) + pl.duration(days=days // 7 * 7)).alias("week"))
        .agg(
            pl.len().alias("answers"),
            pl.col("user_id").n_unique().alias("users"),
            pl.col("num_accepted").mean().alias("per_answer"),
            (pl.col("num_accepted") > 0).mean().alias("any_accepted"),
            (pl.col("num_items") == 0).sum().alias("empty"),
        )
        .sort("week")
    )


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text:.40}: give a date, such as 2022-04-01") from None


def main(arguments: list[str] | None = None) -> None:
    """Simulate, write the table of answers, and print the table by week."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="the service of `convrec serve`")
    parser.add_argument("--users", type=int, required=True, help="each asks once a day")
    parser.add_argument("--days", type=int, required=True)
    parser.add_argument("--start", type=_day, default=date(2022, 1, 1), metavar="DATE", help="default: %(default)s")
    text = "the day on which the audience changes; default: as in the data, in the fourth month"
    parser.add_argument("--shift-date", type=_day, metavar="DATE", help=text)
    parser.add_argument("--seed", type=int, default=1, help="of the users; default: %(default)s")
    parser.add_argument("-n", type=int, default=20, help="items to ask for; default: %(default)s")
    parser.add_argument("--key", help="API key of the service")
    text = "feedback database of the service; its times become the simulated ones"
    parser.add_argument("--feedback", metavar="URL", help=text)
    text = "table with a row for each answer; default: %(default)s"
    parser.add_argument("--output", type=Path, default=Path("runs/simulation.parquet"), metavar="FILE", help=text)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        check_target(options.output, "--output")
        plan = Plan(options.url, options.users, options.days, options.start, options.n, options.key, options.feedback)
        visits = simulate(plan, Audience(load_params(), options.seed, options.shift_date))
    except (InputError, Unavailable) as error:
        raise SystemExit(redact(str(error))) from None
    visits.write_parquet(options.output)
    with pl.Config(tbl_rows=-1, tbl_formatting="ASCII_MARKDOWN", tbl_hide_column_data_types=True, float_precision=3):
        sys.stdout.write(f"{weekly(visits)}\n")
    sys.stdout.write(f"Table: {options.output}\n")


if __name__ == "__main__":
    main()
