"""dvc.yaml: what a stage declares to read."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from convrec.project.code import TRAINERS, Key, make_key, stage_code
from convrec.project.config.params import Params
from convrec.project.errors import InputError
from convrec.project.yaml import read_yaml

GRAPH = Path("dvc.yaml")


def _stages() -> dict[str, Any]:
    return dict(read_yaml(GRAPH).get("stages", {}))


def missing_inputs(stage: str) -> list[str]:
    """Return the outputs of other stages that this stage reads and that are not made yet."""
    stages = _stages()
    entries = [entry for other in stages.values() for entry in other.get("outs", [])]
    outs = {name for entry in entries for name in ([entry] if isinstance(entry, str) else entry)}
    return [name for name in stages.get(stage, {}).get("deps", []) if name in outs and not Path(name).exists()]


def stage_params(params: Params, stage: str) -> Params:
    """Return the parameters that dvc.yaml declares for a stage, without the others; the stage cannot read those.

    Raises `InputError` if dvc.yaml is missing or has no parameters for the stage, and `AttributeError` if it declares a
    parameter that does not exist.
    """
    declared = _stages().get(stage, {}).get("params")
    if not declared:
        raise InputError(
            f"{GRAPH}: stages.{stage}.params is missing; list what the stage reads, such as common, {stage}"
        )
    return params.only(name for name in declared if isinstance(name, str))


def training_key(stage: str, params: Params, inputs: Iterable[Path]) -> Key:
    """Return the key of a stage's training: of its declared parameters that are not `Unkeyed`, and of all it reads."""
    return make_key(stage_params(params, stage).keyed(stage), inputs, stage_code(stage), TRAINERS)
