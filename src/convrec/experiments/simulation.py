"""`convrec simulate`: the users of the embedded world talk to a running service over HTTP."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import httpx
import polars as pl

from convrec.errors import InputError, Unavailable
from convrec.experiments.simulated_time import Simulated, move_to
from convrec.experiments.simulated_users import Audience, Visit

logger = logging.getLogger(__name__)

CONCURRENT = 16  # requests at a time
_TRIES, _LONGEST_WAIT = 8, 30.0  # of a request that the service refuses for now; seconds between two tries
_TIMEOUT = 120.0  # seconds for an answer
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


@dataclass(frozen=True)
class Plan:
    """Who talks to the service when; `feedback` is the URL of its database, whose times become the simulated ones."""

    url: str
    num_users: int
    num_days: int
    start: date
    num_items: int
    key: str | None = None
    feedback: str | None = None


def simulate(plan: Plan, audience: Audience, known: frozenset[str]) -> pl.DataFrame:
    """Return one row for each visit: answer, user, simulated time, version, arm, and what was accepted.

    `known` are the ids of the world's films. Raises `InputError` if the service rejects a request, records no feedback
    or shows other items, and `Unavailable` if it does not answer.
    """
    return asyncio.run(_simulate(plan, audience, known))


async def _simulate(plan: Plan, audience: Audience, known: frozenset[str]) -> pl.DataFrame:
    rows: list[dict[str, Any]] = []
    headers = {"Authorization": f"Bearer {plan.key}"} if plan.key else {}
    limits = httpx.Limits(max_connections=CONCURRENT)
    async with httpx.AsyncClient(base_url=plan.url, headers=headers, timeout=_TIMEOUT, limits=limits) as client:
        gate = asyncio.Semaphore(CONCURRENT)

        async def visit(one: Visit) -> dict[str, Any]:
            async with gate:
                return await _visit(client, one, plan.num_items, known)

        for number in range(plan.num_days):
            day = plan.start + timedelta(days=number)
            visits = audience.visits(plan.num_users, day)
            done = await asyncio.gather(*map(visit, visits))
            rows += done
            if plan.feedback is not None:
                recorded = {row["answer_id"]: Simulated(row["time"], row["num_accepted"]) for row in done}
                await asyncio.to_thread(move_to, plan.feedback, recorded)
            accepted = sum(row["num_accepted"] for row in done)
            logger.info("%s: %d answers, %.2f accepted items per answer", day, len(done), accepted / len(done))
    return pl.DataFrame(rows, schema=_SCHEMA)


async def _visit(client: httpx.AsyncClient, visit: Visit, num_items: int, known: frozenset[str]) -> dict[str, Any]:
    question = {"messages": visit.messages, "n": num_items, "or_fewer": True, "user_id": visit.user_id}
    answer = await _post(client, "/recommend", question)
    if answer.get("answer_id") is None:
        raise InputError(f"{client.base_url}: the service records no feedback; start it without `--feedback none`")
    items = [row["item_id"] for row in answer["recommendations"]]
    foreign = next((item for item in items if item not in known), None)
    if foreign is not None:
        raise InputError(
            f"{client.base_url}: item {foreign!r:.60} is not a film of the embedded world; serve a model that was "
            "trained on it"
        )
    accepted = visit.accepted(items)
    for item in accepted:
        event = {"answer_id": answer["answer_id"], "item_id": item, "event": "accepted"}
        await _post(client, "/feedback", event)
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


def weekly(visits: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each week, from the first day on: its first day, answers, users, and what was accepted.

    `per_answer` is the mean number of accepted items, `any_accepted` the share of answers with one, `empty` the number
    of answers without an item.
    """
    start = visits["time"].dt.date().min()
    week = ((pl.col("time").dt.date() - pl.lit(start)).dt.total_days() // 7).alias("number")
    return (
        visits.group_by(week)
        .agg(
            pl.len().alias("answers"),
            pl.col("user_id").n_unique().alias("users"),
            pl.col("num_accepted").mean().alias("per_answer"),
            (pl.col("num_accepted") > 0).mean().alias("any_accepted"),
            (pl.col("num_items") == 0).sum().alias("empty"),
        )
        .sort("number")
        .select((pl.lit(start) + pl.duration(days=7 * pl.col("number"))).alias("week"), pl.exclude("number"))
    )


def week_rows(table: pl.DataFrame) -> Sequence[tuple[str, ...]]:
    """Return the rows of `weekly` as texts."""
    return [
        (
            str(row["week"]),
            str(row["answers"]),
            str(row["users"]),
            f"{row['per_answer']:.3f}",
            f"{row['any_accepted']:.1%}",
            str(row["empty"]),
        )
        for row in table.iter_rows(named=True)
    ]
