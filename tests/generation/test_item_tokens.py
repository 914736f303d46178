"""Item tokens: their rows, new items of a model that is trained, and adapters beside them."""

import copy

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import PeftModel
from scipy import sparse
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from convrec.data.catalog import Catalog, Item
from convrec.generation.constraint import ConstraintState
from convrec.generation.export import export_model, lora_config
from convrec.generation.item_tokens import add_item_tokens
from convrec.generation.line_tokens import add_tokens, completion_tokens, item_token, item_tokens, keep_up
from convrec.generation.model_folders import standalone
from convrec.generation.pretrained import load_model, load_tokenizer
from convrec.generation.prompt_tokens import generation_prompt, hold_mentions, token_ids
from convrec.generation.trie import ListRequest, catalog_trie
from convrec.project.errors import InputError
from convrec.service.recommender import Recommender
from tests.generation.small import save, sizes
from tests.generation.vocabularies import TOKENIZERS
from tests.service.recommending import SETTINGS
from tests.training.tiny_sft import train_tiny

KINDS = pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "embedded", "spanning"])
GENRES = ("space, horror", "crime, heist", "romance, dance")
FILMS = Catalog([Item(f"Film {n}", 1950 + n, {"genres": GENRES[n % 3]}) for n in range(60)])
WIDE = {"hidden_size": 48, "intermediate_size": 16, "layers": 1}


def _made(kind: str = "byte_level", tied: bool = True, catalog: Catalog = FILMS, architecture="qwen2", **options):
    tokenizer = copy.deepcopy(TOKENIZERS[kind]())
    small = {"vocab_size": len(tokenizer), **sizes(**WIDE), "tie_word_embeddings": tied}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **small))
    if not tied:
        torch.nn.init.normal_(model.get_output_embeddings().weight, 1.0, 2.0)
    add_item_tokens(model, tokenizer, catalog, **options)
    return model.eval(), tokenizer


@KINDS
def test_a_list_is_a_token_an_item_and_the_end(kind):
    _, tokenizer = _made(kind)
    tokens = completion_tokens("\n".join(map(str, FILMS.items[:20])), tokenizer, "a prompt: ")
    assert tokens == [*(item_token(str(item), tokenizer) for item in FILMS.items[:20]), tokenizer.eos_token_id]
    assert tokenizer.decode(tokens[:-1]) == "".join(f"{item}\n" for item in FILMS.items[:20])
    assert catalog_trie(FILMS, tokenizer).longest(20) == 21


@KINDS
def test_item_tokens_are_mentions_and_lines_of_lists_alone(kind, tmp_path):
    """They are no end of a word, of other words, or of the chat template; other tokens keep their ids."""
    bare = copy.deepcopy(TOKENIZERS[kind]())
    bare.chat_template = TOKENIZERS["byte_level"]().chat_template  # it has `assistant` in a line
    tokenizer = copy.deepcopy(bare)
    catalog = Catalog([*(Item(title, None) for title in ("Up", "Us", "1984", "ant", "assistant")), Item("Heat", 1995)])
    add_tokens(tokenizer, list(map(str, catalog.items[:3])))
    for own in (tokenizer, bare):
        own.add_tokens(["<extra>"])
    assert keep_up(tokenizer, catalog)
    items = item_tokens(tokenizer)
    others = "Shut Up\nUSUs\nborn in 1984\nCheat (1995)\ngiant\nhave you seen Up?\n<extra>\nwhat is up\nlike Up"
    user, assistant = [{"role": "user", "content": others}], {"role": "assistant", "content": "\x010\x01 Us"}

    def text(ids):  # Llama 2's puts a space before what follows a token of its own
        return tokenizer.decode(ids).replace("\n ", "\n")

    tail = tokenizer.get_vocab()["<extra>"] - bare.get_vocab()["<extra>"]
    expected = [token + tail * (token == bare.get_vocab()["<extra>"]) for token in token_ids(bare, [user])[0]]
    assert token_ids(tokenizer, [user])[0] == expected
    assert not {*token_ids(tokenizer, [[*user, assistant, *user]])[0]} & {*items.values()}
    long = "I liked Up " * 100_000
    assert hold_mentions(long, tokenizer) == long, "in linear time"
    named = [{"role": "user", "content": "User: I liked Up\nUp, Us\nAssistant: Was it Heat (1995)\n\nI saw an ant\n"}]
    (ids,) = token_ids(tokenizer, [named])
    assert [i for i in ids if i in items.values()] == [items[i] for i in ("Up", "Us", "Heat (1995)", "ant")]
    assert named[0]["content"] in text(ids)
    written = completion_tokens("Giant\nUp\nShut Up\nant", tokenizer, generation_prompt(tokenizer))
    assert [i for i in written if i in items.values()] == [items["Up"], items["ant"]]
    assert text(written[:-1]) == "Giant\nUp\nShut Up\nant\n"
    tokenizer.save_pretrained(tmp_path)
    assert token_ids(load_tokenizer(tmp_path), [named]) == [ids]


@pytest.mark.parametrize("tied", [True, False])
def test_rows_start_at_the_usual_distance_near_items_of_the_same_text(tied):
    before = _made(tied=tied, catalog=Catalog(FILMS.items[:1]))[0].get_input_embeddings().weight[:-1]
    model, tokenizer = _made(tied=tied)
    ids = list(item_tokens(tokenizer).values())
    assert torch.equal(model.get_input_embeddings().weight[: len(before)], before)
    for embeddings in (model.get_input_embeddings(), model.get_output_embeddings()):
        old = embeddings.weight[: len(before)]
        moved = embeddings.weight[ids] - old.mean(0)
        usual = (old - old.mean(0)).norm(dim=1).median()
        torch.testing.assert_close(moved.norm(dim=1), usual.expand(60), rtol=1e-3, atol=1e-4)
        near = torch.nn.functional.cosine_similarity(moved[:, None], moved[None], dim=2)
        same = torch.tensor([[a % 3 == b % 3 for a in range(60)] for b in range(60)])
        assert near[same & ~torch.eye(60, dtype=bool)].mean() > near[~same].mean() + 0.3


def test_likes_bring_items_together_that_texts_do_not():
    films = Catalog([Item(f"Film {n}", 1950 + n, {"genres": GENRES[n % 3]}) for n in range(8)])
    likes = np.zeros((40, 8), np.float32)
    likes[:20, [0, 1]] = likes[20:, [2, 3]] = 1
    near = []
    for given in (None, sparse.csr_array(likes)):
        model, tokenizer = _made(catalog=films, likes=given)
        rows = model.get_input_embeddings().weight.detach()[list(item_tokens(tokenizer).values())]
        near.append(float(torch.nn.functional.cosine_similarity(rows[0], rows[1], dim=0)))
    assert near[1] > near[0] + 0.2


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_tokens_are_loaded_from_the_tokenizer_s_file_alone(kind, tmp_path):
    """A copy of each item token in Python takes longer than the file."""
    TOKENIZERS[kind]().save_pretrained(tmp_path)
    plain, found = PreTrainedTokenizerFast.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    assert not found.init_kwargs["added_tokens_decoder"]
    assert found.backend_tokenizer.to_str() == plain.backend_tokenizer.to_str()
    assert found.special_tokens_map == plain.special_tokens_map
    assert item_tokens(found) == item_tokens(plain) and bool(item_tokens(found)) == (kind == "item_tokens")
    found.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


def _log_probs(model, tokenizer, catalog: Catalog) -> dict[str, float]:
    """Return the log-probability of each first item, under the constraint."""
    trie = catalog_trie(catalog, tokenizer)
    ids = torch.tensor([tokenizer("a space film please").input_ids])
    with torch.no_grad():
        scores = model(ids).logits[:, -1].float()
    logs = ConstraintState(trie, [ListRequest(5)], scores.shape[1]).mask_(scores).log_softmax(1)[0]
    return {str(item): float(logs[item_token(str(item), tokenizer)]) for item in catalog.items}


def test_another_catalog_changes_nothing_but_its_new_and_its_lost_items(tmp_path):
    """500 items are new and 300 are gone: the others' probabilities keep their ratios."""
    old = Catalog([Item(f"Film {n}", 1900, {"genres": GENRES[n % 3]}) for n in range(1000)])
    new = Catalog([*old.items[300:], *(Item(f"Work {n}", 2025, {"genres": GENRES[n % 3]}) for n in range(500))])
    model, tokenizer = _made(catalog=old)
    folder = save(tmp_path / "model", model, tokenizer)
    with standalone(folder, keep_up(load_tokenizer(folder), old)) as same:
        assert same == folder
    with standalone(folder, keep_up(load_tokenizer(folder), new)) as copied:
        assert copied != folder
        later, its_tokenizer = load_model(copied), load_tokenizer(copied)
        before, after = model.get_input_embeddings().weight, later.get_input_embeddings().weight
        assert len(after) == len(before) + 500 and torch.equal(after[: len(before)], before)
        was, now = _log_probs(model, tokenizer, old), _log_probs(later.eval(), its_tokenizer, new)
        shift = now["Film 500 (1900)"] - was["Film 500 (1900)"]
        kept = [str(item) for item in old.items[300:]]
        np.testing.assert_allclose([now[line] - was[line] for line in kept], shift, atol=1e-4)
        fresh = [now[f"Work {n} (2025)"] for n in range(500)]
        assert min(now[line] for line in kept) < min(fresh) and max(fresh) > np.quantile(list(now.values()), 0.9)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["qwen2", "llama", "gpt_neox"])
def test_adapters_train_the_rows_of_items_alone(architecture, tied, tmp_path):
    """By SFT; the merged model is that with the adapters, and serves lists."""
    model, tokenizer = _made(tied=tied, architecture=architecture)
    base = save(tmp_path / "base", model, tokenizer)
    ids = completion_tokens("\n".join(map(str, FILMS.items[:5])), tokenizer, "")
    rows = Dataset.from_list([{"input_ids": ids, "labels": ids}] * 8)
    adapters = lora_config(model.config, tokenizer, 2, 4, 0.0)
    options = {"tokenizer": tokenizer, "peft_config": adapters, "learning_rate": 0.1, "num_train_epochs": 1}
    saved = train_tiny(load_model(base), tmp_path / "run", rows=rows, **options)
    export_model(saved, base, tokenizer, tmp_path / "out", 1.0)
    written, ids = load_model(tmp_path / "out").eval(), torch.tensor([ids])
    adapted = PeftModel.from_pretrained(load_model(base), str(saved)).eval()
    torch.testing.assert_close(written(ids).logits, adapted(ids).logits, rtol=1e-4, atol=1e-4)
    first = min(item_tokens(tokenizer).values())
    for old, new in (
        (model.get_input_embeddings().weight, written.get_input_embeddings().weight),
        (model.get_output_embeddings().weight, written.get_output_embeddings().weight),
    ):
        changed = (old != new).any(1).nonzero().flatten().tolist()
        assert changed and min(changed) >= first
    its_tokenizer = load_tokenizer(tmp_path / "out")
    served = [Recommender(own, its_tokenizer, FILMS, SETTINGS).recommend("space", 5) for own in (written, adapted)]
    assert served[0] == served[1] and {str(own) for own in served[0]} <= set(map(str, FILMS.items))


def test_adapters_beside_a_head_with_a_bias_are_refused():
    tokenizer = copy.deepcopy(TOKENIZERS["item_tokens"]())
    config = AutoConfig.for_model("phi", vocab_size=len(tokenizer), **sizes(**WIDE))
    with pytest.raises(InputError, match="'phi' has a bias in its head"):
        lora_config(config, tokenizer, 2, 4, 0.0)
