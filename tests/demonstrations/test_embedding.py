import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from convrec.demonstrations import embedding
from convrec.demonstrations.embedding import SentenceEmbedder, TfidfEmbedder
from convrec.errors import InputError

TEXTS = ["crime and heist", "space horror", "a desert planet", "crime and heist"]


def test_tfidf_vectors_have_unit_length(catalog):
    vectors = TfidfEmbedder([item.text() for item in catalog.items]).embed_items(["crime and heist", "nothing known"])
    assert np.linalg.norm(vectors.toarray(), axis=1).round(6).tolist() == [1.0, 0.0]
    assert vectors.dtype == np.float32


def _make_model(folder, seed):
    """Save a small sentence-transformers model: a BERT of random weights with mean pooling."""
    import torch  # noqa: PLC0415

    torch.manual_seed(seed)
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=100, special_tokens=special))
    bert = folder / "bert"
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(bert)
    config = BertConfig(
        vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    BertModel(config).save_pretrained(bert)
    transformer = Transformer(str(bert))
    model = SentenceTransformer(modules=[transformer, Pooling(16)])
    model.save(str(folder / "model"))
    return str(folder / "model")


def test_a_sentence_model_embeds_each_item_once(tmp_path, monkeypatch):
    name, store = _make_model(tmp_path, 0), tmp_path / "cache" / "vectors.sqlite"
    monkeypatch.setattr(embedding, "_PART", 2)
    first = SentenceEmbedder(name, device="cpu", store=store)
    vectors = first.embed_items(TEXTS)
    assert vectors.shape == (4, 16) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(vectors[0], vectors[3])

    asked = []
    again = SentenceEmbedder(name, device="cpu", store=store)
    encode = again._model.encode_document
    monkeypatch.setattr(
        again._model, "encode_document", lambda texts, **settings: asked.extend(texts) or encode(texts, **settings)
    )
    np.testing.assert_array_equal(again.embed_items([*TEXTS, "new"])[:4], vectors)
    assert asked == ["new"], "of a later catalog only the new item is embedded"


def test_another_model_has_vectors_of_its_own(tmp_path):
    store = tmp_path / "vectors.sqlite"
    folders = [tmp_path / "one", tmp_path / "two"]
    one, two = (
        SentenceEmbedder(_make_model(folder, seed), device="cpu", store=store) for seed, folder in enumerate(folders)
    )
    assert np.abs(one.embed_items(TEXTS) - two.embed_items(TEXTS)).max() > 0.01


def test_conversations_are_embedded_and_not_kept(tmp_path):
    embedder = SentenceEmbedder(_make_model(tmp_path, 0), device="cpu", store=tmp_path / "vectors.sqlite")
    np.testing.assert_allclose(embedder.embed_conversations(TEXTS[:2]), embedder.embed_items(TEXTS[:2]), rtol=1e-5)


def test_a_model_that_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="embedder.name = .*nowhere"):
        SentenceEmbedder(str(tmp_path / "nowhere" / "at" / "all"), device="cpu")
