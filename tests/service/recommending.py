"""A recommender with a small random model, for the tests of what asks it."""

from pathlib import Path
from typing import Any

from convrec.data.catalog import Catalog, Item
from convrec.generation.item_tokens import add_item_tokens
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
LOOP = "{% for _ in range(99999) %}" * 4 + "{% endfor %}" * 4  # of a chat template, without end
GENRES = ("crime, drama", "drama, romance")
CATALOG = Catalog(
    [
        *(Item(title, 1975 + 3 * place, {"genres": GENRES[place % 2]}) for place, title in enumerate(TITLES)),
        Item("Dune", 1984, {"genres": "sci-fi"}),
        Item("Dune", 2021, {"genres": "sci-fi"}),
        Item("Casablanca", None),
    ]
)


def make_item_model(catalog: Catalog = CATALOG, seed: int = 0) -> tuple[Any, Any]:
    """Return an untrained model with item tokens, and its tokenizer."""
    tokenizer = train_tokenizer([WORDS] * 5, catalog.items, 300)
    model = make_model(tokenizer, **SIZES, seed=seed)
    add_item_tokens(model, tokenizer, catalog)
    return model, tokenizer


def make_recommender(
    seed: int = 0, catalog: Catalog = CATALOG, settings: ListSettings = SETTINGS, guide: Guide | None = None
) -> Recommender:
    """Return a recommender whose model was never trained."""
    return Recommender(*make_item_model(catalog, seed), catalog, settings, guide)


def served(version: str, recommender: Recommender) -> ServedModel:
    """Return a version that decodes up to eight lists together."""
    return ServedModel(version, recommender.translator, Batcher(recommender.complete, 8))


def save_model(folder: Path, seed: int = 0, **options: Any) -> Path:
    """Write the same untrained model as a Hugging Face folder; `options` are those of `save_pretrained`."""
    return save(folder, *make_item_model(CATALOG, seed), **options)
