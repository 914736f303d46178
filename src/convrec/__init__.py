"""convrec: conversations and a catalog in, a small LLM that recommends well out.

The names below are the public API. Each is imported when it is first used, so that `import convrec` loads neither torch
nor MLflow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convrec.data.catalog import Catalog, Item
    from convrec.project.errors import InputError
    from convrec.registry.recommenders import open_recommender
    from convrec.service.recommender import Recommendation, RecommendedList, Recommender
    from convrec.training.rl.arguments import RankGRPOConfig
    from convrec.training.rl.rewards import RankReward
    from convrec.training.rl.trainer import RankGRPOTrainer

__version__ = "0.1.0"
__all__ = [
    "Catalog",
    "InputError",
    "Item",
    "RankGRPOConfig",
    "RankGRPOTrainer",
    "RankReward",
    "Recommendation",
    "RecommendedList",
    "Recommender",
    "__version__",
    "open_recommender",
]
_MODULES = {
    "Catalog": "data.catalog",
    "InputError": "project.errors",
    "Item": "data.catalog",
    "RankGRPOConfig": "training.rl.arguments",
    "RankGRPOTrainer": "training.rl.trainer",
    "RankReward": "training.rl.rewards",
    "Recommendation": "service.recommender",
    "RecommendedList": "service.recommender",
    "Recommender": "service.recommender",
    "open_recommender": "registry.recommenders",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
