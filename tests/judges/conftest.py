"""Tiny models of the real classes, made here, and a server on loopback that speaks a real protocol."""

from __future__ import annotations

import re

import pytest

from tttembed_rag.rewards.observations import Served
from tttembed_rag.testing import word_overlap

# Text to learn pieces from; yes and no are common enough to become tokens of their own.
PROSE = (
    "yes no system user assistant Judge whether the Document meets the requirements based on the Query and the "
    "Instruct provided. Note that the answer can only be yes or no. The river runs past the city and the old mill. "
    "How do I wash a wool jumper without shrinking it? Use cold water and little soap. Score: 5 Score: 0\n"
)
# Special tokens of a model that writes text, as Qwen3 has them; its other added tokens are structure too.
WRITER = {"pad_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
STRUCTURE = ("<think>", "</think>", "<tool_call>", "</tool_call>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def byte_level_tokenizer(special, extra=(), **options):
    """A byte-level tokenizer with these special tokens, the frame of its family, and *extra* added words."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token=special.get("unk_token")))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet, names = pre_tokenizers.ByteLevel.alphabet(), list(dict.fromkeys(special.values()))
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=names, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([PROSE] * 20 + ["yes", "no"] * 50, trainer)
    if "cls_token" in special:
        first, last = special["cls_token"], special["sep_token"]
        between = f"{last} {last}" if first == "<s>" else last
        segment = ":0" if first == "<s>" else ":1"
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}",
            pair=f"{first} $A {between} $B{segment} {last}{segment}",
            special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, last)],
        )
    tokenizer.add_tokens([AddedToken(word, normalized=False, special=False) for word in extra])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special, **options)


def word_piece_tokenizer():
    """A WordPiece tokenizer with the frame of BERT, its special tokens in the vocabulary as there."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = sorted({*re.findall(r"[a-z]+|[^\sa-z]", PROSE.lower()), *"abcdefghijklmnopqrstuvwxyz[]sep0123456789"})
    tail = [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz0123456789"]
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words, *tail])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106 (a token, not a password)
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    special["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **special)


def served(queries=4, depth=5, tasks=1):
    """Queries with candidates of their own, dealt to tasks."""
    return [
        Served.of_texts(f"q{q}", f"query {q}", [(f"d{q}-{d}", f"{q} {'x' * d}") for d in range(depth)], f"t{q % tasks}")
        for q in range(queries)
    ]


def folder_of(parts, folder):
    """The folder of a model, which transformers loads."""
    for part in parts:
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def reranker():
    """A tiny Qwen3 with random weights and its tokenizer; its answers differ from pair to pair."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    starts = {"additional_special_tokens": ["<|im_start|>"]}
    tokenizer = byte_level_tokenizer(WRITER, STRUCTURE, chat_template=CHAT_TEMPLATE, padding_side="left", **starts)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=4096,
        initializer_range=0.3,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config).eval(), tokenizer


@pytest.fixture(scope="session")
def reranker_folder(reranker, tmp_path_factory):
    """The tiny reranker as a folder."""
    return folder_of(reranker, tmp_path_factory.mktemp("models") / "tiny-reranker")


@pytest.fixture(scope="session")
def classifier():
    """A tiny BERT with one label and its tokenizer."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    tokenizer = word_piece_tokenizer()
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        num_labels=1,
        initializer_range=0.3,
    )
    return BertForSequenceClassification(config).eval(), tokenizer


@pytest.fixture(scope="session")
def classifier_folder(classifier, tmp_path_factory):
    """The tiny classifier as a folder, which sentence-transformers loads too."""
    return folder_of(classifier, tmp_path_factory.mktemp("models") / "tiny-classifier")


@pytest.fixture
def cohere(serve):
    """A server that speaks Cohere's rerank protocol, best first, and bills one search a request."""

    def answer(path, body, _):
        results = [
            {"index": i, "relevance_score": word_overlap(body["query"], document)}
            for i, document in enumerate(body["documents"])
        ]
        results.sort(key=lambda result: -result["relevance_score"])
        return 200, {}, {"id": "x", "results": results, "meta": {"billed_units": {"search_units": 1}}}

    return serve(answer)
