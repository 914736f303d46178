import numpy as np
import pytest
from scipy import sparse
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from sklearn.feature_extraction.text import TfidfVectorizer
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from convrec.classical import embedding
from convrec.classical.embedding import SentenceEmbedder, TfidfEmbedder, make_embedder
from convrec.project.errors import InputError

TEXTS = ["crime and heist", "space horror", "a desert planet", "crime and heist"]


@pytest.mark.parametrize("word_ngrams", [1, 2])
def test_the_terms_of_spaced_scripts_are_words_and_pairs(catalog, word_ngrams):
    """The products of vectors are those of scikit-learn's own analyzer; terms have another order."""
    texts = [item.text() for item in catalog.items] + ["Amélie loves the Übermensch of Сталкер, 기생충 & מים"]
    plain = TfidfVectorizer(
        ngram_range=(1, word_ngrams),
        sublinear_tf=True,
        stop_words="english",
        token_pattern=r"(?u)\b\w[\w-]+\b",
        dtype=np.float32,
    ).fit(texts)
    vectors = TfidfEmbedder(texts, word_ngrams).embed_items(texts)
    expected = sparse.csr_array(plain.transform(texts))
    np.testing.assert_allclose((vectors @ vectors.T).toarray(), (expected @ expected.T).toarray(), rtol=1e-6)
    again = TfidfEmbedder.of_arrays(TfidfEmbedder(texts, word_ngrams).arrays()).embed_items(texts)
    assert (vectors != again).nnz == 0 and vectors.dtype == np.float32


@pytest.mark.parametrize(
    ("texts", "question", "best"),
    [
        (["花样年华 爱情", "英雄 武侠", "流浪地球 科幻"], "我想看武侠片，比如英雄", 1),
        (["七人の侍 時代劇", "もののけ姫 アニメ", "東京物語 家族"], "アニメ映画でもののけ姫みたいなもの", 1),
        (["ต้มยำกุ้ง แอ็คชั่น", "แฟนฉัน ตลก", "นางนาก สยองขวัญ"], "อยากดูหนังตลกเหมือนแฟนฉัน", 1),
        (["Heat 犯罪 crime", "英雄 wuxia"], "something with crime", 0),
        (["दंगल कुश्ती", "लगान क्रिकेट", "शोले डाकू"], "क्रिकेट की फ़िल्म", 1),
    ],
)
def test_scripts_without_spaces_are_alike_by_their_characters(texts, question, best):
    embedder = TfidfEmbedder(texts)
    cosines = (embedder.embed_items(texts) @ embedder.embed_conversations([question]).T).toarray()[:, 0]
    assert cosines.argmax() == best and cosines[best] > 1.2 * np.sort(cosines)[-2]


@pytest.mark.parametrize(
    ("texts", "question", "best"),
    [(["The", "It", "Them"], "is it the one?", 1), (["😀", "😎😀", "🎲"], "🎲!", 2), (["!", "?"], "?", 1)],
)
def test_catalogs_of_stop_words_or_signs_have_vectors(texts, question, best):
    embedder = TfidfEmbedder(texts)
    cosines = (embedder.embed_items(texts) @ embedder.embed_conversations([question]).T).toarray()[:, 0]
    assert np.linalg.norm(embedder.embed_items(texts).toarray(), axis=1).round(6).tolist() == [1.0] * len(texts)
    assert cosines[best] == cosines.max() > 0


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


def test_an_embedder_is_made_by_its_name(tmp_path, monkeypatch):
    words = make_embedder(TEXTS, "tfidf", revision=None, trust_remote_code=False).embed_conversations(TEXTS)
    assert words.shape[0] == len(TEXTS) and words.nnz
    monkeypatch.setattr(embedding, "_PART", 2)
    model = make_embedder(TEXTS, _make_model(tmp_path, 0), device="cpu")
    vectors = model.embed_items(TEXTS)
    assert isinstance(model, SentenceEmbedder) and vectors.shape == (4, 16) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(model.embed_conversations(TEXTS[3:])[0], vectors[0], rtol=1e-5)


def test_a_model_that_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="embedder.name = .*nowhere"):
        SentenceEmbedder(str(tmp_path / "nowhere" / "at" / "all"), device="cpu")
