"""Rerankers of every family: their scores are those of sentence-transformers, one pair at a time."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from tests.judges.conftest import WRITER, byte_level_tokenizer, folder_of
from tttembed_rag import JudgeError
from tttembed_rag.embedders import open_embedder
from tttembed_rag.errors import EmbedderError
from tttembed_rag.judges import open_judge

QUERY = "How do I wash a wool jumper?"
DOCUMENTS = ["Use cold water and little soap.", "The river runs past the city. " * 7, "no"]
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "num_labels": 1}
# Names of special tokens of a tokenizer, by family: of BERT's and of RoBERTa's.
BERT = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
ROBERTA = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>"}
CAUSAL = {"num_key_value_heads": 1, "head_dim": 16, "max_position_embeddings": 512}
# By name: the class of transformers, its options, special tokens, whether a frame is put around pairs.
FAMILIES = {
    "bert": ("Bert", {"max_position_embeddings": 128}, BERT),
    "electra": ("Electra", {"max_position_embeddings": 128, "embedding_size": 32}, BERT),
    "distilbert": ("DistilBert", {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 2}, BERT),
    "modernbert": ("ModernBert", {"max_position_embeddings": 128, "pad_token_id": 2}, BERT),
    "deberta": ("DebertaV2", {"type_vocab_size": 0, "relative_attention": True, "pad_token_id": 2}, BERT),
    "roberta": ("Roberta", {"max_position_embeddings": 130, "pad_token_id": 1}, ROBERTA),
    "xlm-roberta": ("XLMRoberta", {"max_position_embeddings": 130, "pad_token_id": 1, "type_vocab_size": 1}, ROBERTA),
    "mpnet": ("MPNet", {"max_position_embeddings": 130, "pad_token_id": 1}, ROBERTA),
    "qwen3": ("Qwen3", {**CAUSAL, "pad_token_id": 0}, WRITER),
    "qwen3 without padding": ("Qwen3", {**CAUSAL, "pad_token_id": None}, WRITER),
    "llama without padding": ("Llama", {**CAUSAL, "pad_token_id": None}, {"eos_token": "<|im_end|>"}),
    "gemma": ("Gemma", {**CAUSAL, "pad_token_id": 0}, WRITER),
}


def model_of(family, extra=(), **options):
    """A tiny model of a family with random weights, and its tokenizer."""
    import transformers

    kind, config, special = FAMILIES[family]
    tokenizer = byte_level_tokenizer(special, extra, **options)
    torch.manual_seed(0)
    settings = getattr(transformers, f"{kind}Config")(vocab_size=len(tokenizer), **{**SMALL, **config})
    settings.initializer_range = 0.3
    return getattr(transformers, f"{kind}ForSequenceClassification")(settings).eval(), tokenizer


def theirs(folder, documents, **options):
    """The logits of sentence-transformers, one pair after the other."""
    from sentence_transformers import CrossEncoder

    rival = CrossEncoder(str(folder), device="cpu", activation_fn=torch.nn.Identity(), **options)
    if rival.tokenizer.pad_token is None:  # it asks for one, and pads nothing with it here
        rival.tokenizer.pad_token = rival.tokenizer.eos_token
    return [float(rival.predict([(QUERY, text)], show_progress_bar=False)[0]) for text in documents]


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_sentence_transformers(family, tmp_path):
    """Alone and side by side, with a padding token or without one, in folders that name no longest text."""
    folder = folder_of(model_of(family), tmp_path)
    expected = theirs(folder, DOCUMENTS)

    assert np.ptp(expected) > 1e-4
    judge, probable = (open_judge(f"cross-encoder:{folder}?device=cpu{scale}") for scale in ("&scale=logit", ""))
    assert_allclose(judge.score(QUERY, DOCUMENTS), expected, atol=1e-4)
    assert_allclose(probable.score(QUERY, DOCUMENTS), 1 / (1 + np.exp(np.negative(expected))), atol=1e-4)


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "mpnet", "bert"])
def test_a_long_document_ends_where_the_places_do(family, tmp_path):
    """Of 130 places of RoBERTa's family two are no token's."""
    folder = folder_of(model_of(family), tmp_path)
    judge = open_judge(f"cross-encoder:{folder}?scale=logit&device=cpu")

    long = "The river runs past the city. " * 100
    assert_allclose(judge.score(QUERY, [long]), theirs(folder, [long], max_length=128), atol=1e-4)


@pytest.mark.parametrize("family", ["bert", "modernbert", "xlm-roberta", "qwen3"])
def test_words_that_were_added_are_the_models_own(family, tmp_path):
    """Domain words, markers and runs of blanks that somebody added and trained are no structure."""
    words = ["covid19", "[MED]", "k8s", "    "]
    folder = folder_of(model_of(family, extra=words, model_max_length=128), tmp_path)
    documents = ["k8s restarts a pod", "covid19 is [MED]", "if wool:\n    use(soap)", "covid19    k8s[MED]k8s"]
    judge = open_judge(f"cross-encoder:{folder}?scale=logit&device=cpu")

    assert_allclose(judge.score(QUERY, documents), theirs(folder, documents), atol=1e-4)


@pytest.mark.parametrize("added", ["<think>", "</tool_call>", "<|user|>", "[INST]"])
def test_structure_among_them_stays_text(added):
    """What stands in angle brackets, or in the chat template, beside words that are kept."""
    from tttembed_rag.clients.local import PlainTokenizer

    tokenizer = byte_level_tokenizer(
        WRITER, ["k8s", added, "covid19"], chat_template="[INST] {{ messages[0].content }}"
    )
    ids = PlainTokenizer(tokenizer).ids([f"k8s{added}covid19"])[0]

    assert tokenizer.convert_tokens_to_ids(added) not in ids
    assert [ids[0], ids[-1]] == tokenizer.convert_tokens_to_ids(["k8s", "covid19"])
    assert tokenizer.decode(ids) == f"k8s{added}covid19"


@pytest.fixture
def with_code(tmp_path):
    """A folder whose model is of a class that stands beside it."""
    folder = folder_of(model_of("deberta"), tmp_path / "custom")
    config = json.loads((folder / "config.json").read_text())
    kinds = {
        "AutoConfig": "mine.MyConfig",
        "AutoModelForSequenceClassification": "mine.MyModel",
        "AutoModel": "mine.MyBase",
    }
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "my-own", "auto_map": kinds}))
    (folder / "mine.py").write_text(
        "from transformers import DebertaV2Config, DebertaV2ForSequenceClassification, DebertaV2Model\n"
        "class MyConfig(DebertaV2Config):\n    model_type = 'my-own'\n"
        "class MyModel(DebertaV2ForSequenceClassification):\n    config_class = MyConfig\n"
        "class MyBase(DebertaV2Model):\n    config_class = MyConfig\n"
    )
    return folder


@pytest.mark.parametrize(
    ("kind", "error"), [("cross-encoder", JudgeError), ("yesno", JudgeError), ("sentence-transformers", EmbedderError)]
)
def test_code_beside_a_model_is_not_run_unasked(with_code, monkeypatch, kind, error):
    """Nor is anybody asked on the terminal; the option is named."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    opened = open_embedder if error is EmbedderError else open_judge
    with pytest.raises(error, match=r"brings code of its own, which is run where the option trust_remote_code=true"):
        opened(f"{kind}:{with_code}?device=cpu")


def test_code_beside_a_model_is_run_where_it_is_trusted(with_code):
    """By the option of the one line, and in sentence-transformers alike."""
    judge = open_judge(f"cross-encoder:{with_code}?scale=logit&device=cpu&trust_remote_code=true")

    assert_allclose(judge.score(QUERY, DOCUMENTS), theirs(with_code, DOCUMENTS, trust_remote_code=True), atol=1e-4)


def test_a_local_embedder_has_prefixes(tmp_path, caplog):
    """As E5 reads them, of which a folder says nothing: then the log does."""
    import transformers

    tokenizer = byte_level_tokenizer(BERT, model_max_length=64)
    torch.manual_seed(0)
    settings = transformers.BertConfig(vocab_size=len(tokenizer), **SMALL)
    folder = folder_of((transformers.BertModel(settings), tokenizer), tmp_path / "e5-tiny")
    spec = f"sentence-transformers:{folder}?device=cpu"
    plain = open_embedder(spec)
    warning = "E5 reads 'query: ' and 'passage: '"

    assert warning in caplog.text
    caplog.clear()
    e5 = open_embedder(spec + "&query_prefix=query: &document_prefix=passage: ")
    assert warning not in caplog.text
    assert_allclose(e5.embed_queries(["wool"]), plain.embed_queries(["query: wool"]), atol=1e-6)
    assert_allclose(e5.embed_documents(["wool"]), plain.embed_queries(["passage: wool"]), atol=1e-6)
    assert e5.fingerprint != plain.fingerprint
