"""A recommender with a small random model, for the tests of what asks it."""

from pathlib import Path
from typing import Any

from convrec.data.catalog import Catalog, Item
from convrec.generation.lists import ListSettings
from convrec.generation.trie import Guide
from convrec.service.recommender import Recommender
from convrec.service.served import Batcher, ServedModel
from convrec.training.embedded import make_model, train_tokenizer
from tests.generation.small import save, sizes

SIZES = sizes(intermediate_size=48)
SETTINGS = ListSettings("Recommend {list_length} films.", 20, 64, 1.3, 256, "films")
WORDS = "User: Assistant: a film with heists please, I loved that one but no space"
TITLES = ("Heat", "Her", "Up", "Alien", "Brazil", "Fargo", "Tenet", "Speed", "Amélie", "Network", "Jaws", "Rocky")
GENRES = ("crime, drama", "drama, romance")
CATALOG = Catalog(
    [
        *(Item(title, 1975 + 3 * place, {"genres": GENRES[place % 2]}) for place, title in enumerate(TITLES)),
        Item("Dune", 1984, {"genres": "sci-fi"}),
        Item("Dune", 2021, {"genres": "sci-fi"}),
        Item("Casablanca", None),
    ]
)


def make_recommender(
    seed: int = 0, catalog: Catalog = CATALOG, settings: ListSettings = SETTINGS, guide: Guide | None = None
) -> Recommender:
    """Return a recommender whose model was never trained."""
    tokenizer = train_tokenizer([WORDS] * 5, catalog.items, 300)
    return Recommender(make_model(tokenizer, **SIZES, seed=seed), tokenizer, catalog, settings, guide)


def served(version: str, recommender: Recommender) -> ServedModel:
    """Return a version that decodes up to eight lists together."""
    return ServedModel(version, recommender.translator, Batcher(recommender, 8))


def save_model(folder: Path, seed: int = 0, **options: Any) -> Path:
    """Write the same untrained model as a Hugging Face folder; `options` are those of `save_pretrained`."""
    tokenizer = train_tokenizer([WORDS] * 5, CATALOG.items, 300)
    return save(folder, make_model(tokenizer, **SIZES, seed=seed), tokenizer, **options)
