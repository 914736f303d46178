"""`convrec preflight`: check what a run needs before it starts."""

from math import inf
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from convrec.pipeline.commands import PIPELINE, app
from convrec.project.paths import Paths

Positive = Annotated[float | None, Parameter(validator=Number(gt=0, lt=inf))]


@app.command(group=PIPELINE)
def preflight(*, fast: bool = False, memory: Positive = None, price_per_hour: Positive = None) -> None:
    """Check what a run needs, and run its most expensive steps on throw-away weights.

    Example: convrec preflight --price-per-hour 2.5

    Args:
        fast: Only the checks that take no work.
        memory: Limit of a stage's memory in GiB; default: what is free now.
        price_per_hour: Price of a machine hour, for the cost.
    """
    from convrec.pipeline.preflight import preflight as check
    from convrec.project.config.params import load_params

    check(load_params(), Paths(), fast=fast, memory=memory, price=price_per_hour)
