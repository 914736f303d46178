"""The models that a service holds: those that the registry names, or models that stay."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import mlflow

from convrec.project.errors import InputError
from convrec.registry.experiment import running_experiment
from convrec.registry.recommenders import find_model
from convrec.registry.versions import CHALLENGER, CHAMPION, MODEL_NAME, served_versions
from convrec.service.arms import Experiment
from convrec.service.model_files import ModelFiles
from convrec.service.served import ServedModel


class RegistrySource:
    """Follows the aliases of the registry; a model that is named in `model` or `challenger` stays.

    Without `model`, the champion is followed, and its possible replacement unless `challenger` is given. The role of a
    model that stays is its name. `challenger` may be `none`; with the champion alone, the challenger of the running
    experiment is loaded beside it.
    """

    def __init__(
        self, model: str | None, challenger: str | None, make_served: Callable[[str, ModelFiles], ServedModel]
    ):
        """Raise `InputError` if both models are the same."""
        if model is not None and model == challenger:
            raise InputError(f"--challenger {challenger}: this is the same as the first model; give another, or `none`")
        self._model, self._challenger, self._make_served = model, challenger, make_served
        self.experiment: Experiment | None = None  # running against the champion, when `wanted` was last called

    def wanted(self) -> dict[str, str]:
        """Return the version, or the name, of each role, as `LiveModels` needs it."""
        if self._model is None:
            roles = served_versions(with_challenger=self._challenger is None)
            if self._challenger == "none":
                self.experiment = running_experiment(mlflow.MlflowClient(), roles[CHAMPION])
                if self.experiment is not None:
                    roles[CHALLENGER] = self.experiment.challenger
        else:
            roles = {self._model: self._model}
        if self._challenger not in (None, "none"):
            roles[str(self._challenger)] = str(self._challenger)
        return roles

    def load(self, version: str) -> ServedModel:
        """Return a model with its engine, after its first list."""
        name = f"models:/{MODEL_NAME}/{version}" if version.isdecimal() else version
        with tempfile.TemporaryDirectory(prefix="convrec-version-") as folder:
            served = self._make_served(version, find_model(name, Path(folder)))
        try:
            served.warm()
        except BaseException:
            served.close()
            raise
        return served
