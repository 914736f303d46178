"""A recommender with a small random model, for the tests of what asks it."""

from pathlib import Path

from convrec.data.catalog import Catalog, Item
from convrec.generation.lists import ListSettings
from convrec.serving.recommender import Recommender
from convrec.training.embedded import make_model, train_tokenizer

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
}
SETTINGS = ListSettings("Recommend {list_length} films.", 20, 64, 1.3, 256, "films")
WORDS = "User: Assistant: a film with heists please, I loved that one but no space"
TITLES = ("Heat", "Her", "Up", "Alien", "Brazil", "Fargo", "Tenet", "Speed", "Amélie", "Network", "Jaws", "Rocky")
CATALOG = Catalog(
    [
        *(Item(title, 1975 + 3 * place) for place, title in enumerate(TITLES)),
        Item("Dune", 1984),
        Item("Dune", 2021),
        Item("Casablanca", None),
    ]
)


def make_recommender(seed: int = 0, catalog: Catalog = CATALOG, settings: ListSettings = SETTINGS) -> Recommender:
    """Return a recommender whose model was never trained."""
    tokenizer = train_tokenizer([WORDS] * 5, catalog.items, 300)
    return Recommender(make_model(tokenizer, **SIZES, seed=seed), tokenizer, catalog, settings)


def save_model(folder: Path, seed: int = 0) -> Path:
    """Write the same untrained model as a Hugging Face folder, and return it."""
    tokenizer = train_tokenizer([WORDS] * 5, CATALOG.items, 300)
    make_model(tokenizer, **SIZES, seed=seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
