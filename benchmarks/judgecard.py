"""Pairs per second on a GPU: models of real shapes with random weights, for time does not depend on what they learned.

`benchmarks/judge.py --device cuda` runs it. Rivals, all in one run: the recipe of Qwen3-Reranker's model card (a query
at a time, padded on the left, all logits), the same over all queries sorted by length ("pooled"), sentence-transformers
with all pairs or texts at once, and an older checkout of this package (`--before FOLDER`) in a process of its own.
Texts are real: the first candidates of queries of collections.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tttembed_rag.clients.usage import metered
from tttembed_rag.judges import CrossEncoderJudge, YesNoJudge
from tttembed_rag.judges.documents import readable
from tttembed_rag.judges.yesno import BODY, PREFIX, SUFFIX

Requests = list[tuple[str, list[str]]]
# Shapes of Qwen3-Reranker, and of a cross-encoder and an embedder of MiniLM's.
SHAPES = {
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    | {"num_key_value_heads": 2, "head_dim": 16},
    "0.6B": {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 3072}
    | {"num_key_value_heads": 8, "head_dim": 128},
    "4B": {"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "intermediate_size": 9728}
    | {"num_key_value_heads": 8, "head_dim": 128},
}
MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
# Queries of each collection, and of those the first ones for the rivals that take a query at a time.
COLLECTIONS = {"metatool": (256, 64), "hotpotqa-dev500": (128, 64), "scifact": (64, 32)}
# Tokens of a padded batch, and characters of a text.
POOLED, _LONGEST = 32_768, 100_000


def texts_of(folder: Path, depth: int = 10) -> dict[str, Requests]:
    """Queries of the collections in *folder*, drawn with one seed, each with its first candidates by MiniLM."""
    drawn: dict[str, Requests] = {}
    for name, (count, _) in COLLECTIONS.items():
        read = [json.loads(line) for line in (folder / name / "corpus.jsonl").open(encoding="utf-8")]
        documents = {row["_id"]: f"{row.get('title') or ''} {row['text']}".strip() for row in read}
        read = [json.loads(line) for line in (folder / name / "queries.jsonl").open(encoding="utf-8")]
        queries = {row["_id"]: row["text"] for row in read}
        stored = np.load(folder / name / "vectors" / "minilm.npz")
        rows = np.random.default_rng(0).choice(len(stored["queries"]), count, replace=False)
        scores = stored["queries"][rows].astype(np.float32) @ stored["docs"].T.astype(np.float32)
        drawn[name] = [
            (queries[str(stored["query_ids"][row])], [documents[str(stored["doc_ids"][at])] for at in best])
            for row, best in zip(rows, np.argsort(-scores, axis=1)[:, :depth], strict=True)
        ]
    return drawn


def tokenizer_of(collections: dict[str, Requests], frame: bool = False) -> Any:
    """A byte-level tokenizer of 40,000 pieces learned from the texts, with the turns of Qwen3, or a *frame* of BERT."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=40_000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    texts = [text for requests in collections.values() for query, some in requests for text in (query, *some)]
    tokenizer.train_from_iterator([*texts, *["yes\nno\n"] * 2000], trainer)
    names: dict[str, Any] = {"pad_token": special[0], "eos_token": special[2]}
    if frame:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A <|im_end|>",
            pair="<|im_start|> $A <|im_end|> $B:1 <|im_end|>:1",
            special_tokens=[("<|im_start|>", 1), ("<|im_end|>", 2)],
        )
        names |= {"model_max_length": 512, "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def reranker(shape: str, device: str) -> Any:
    """A Qwen3 of that shape in bfloat16."""
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=151_669, max_position_embeddings=40_960, tie_word_embeddings=True, **SHAPES[shape]
    )
    torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
    try:
        with torch.device(device):
            return transformers.Qwen3ForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(torch.float32)


def rows_of(tokenizer: Any, requests: Requests) -> list[list[list[int]]]:
    """The token ids of each pair, as the model card makes them."""
    prefix, suffix = (tokenizer.encode(part, add_special_tokens=False) for part in (PREFIX, SUFFIX))
    return [
        [
            prefix + ids + suffix
            for ids in tokenizer(
                [BODY.format(instruction=INSTRUCTION, query=query, document=text) for text in texts],
                add_special_tokens=False,
            )["input_ids"]
        ]
        for query, texts in requests
    ]


@torch.inference_mode()
def left_padded(model: Any, tokenizer: Any, rows: Sequence[list[int]], keep: int = 0) -> list[float]:
    """P(yes) of one batch by the model card, which computes all logits; *keep* is how many it computes, 0 all."""
    inputs = tokenizer.pad({"input_ids": list(rows)}, return_tensors="pt", padding_side="left").to(model.device)
    no, yes = (tokenizer.encode(word, add_special_tokens=False)[0] for word in ("no", "yes"))
    logits = model(**inputs, logits_to_keep=keep).logits[:, -1, [no, yes]].float()
    scores: list[float] = logits.softmax(1)[:, 1].tolist()
    return scores


def card(model: Any, tokenizer: Any, requests: Requests) -> list[float]:
    """The model card's recipe, a query at a time in batches of 16."""
    found: list[float] = []
    for rows in rows_of(tokenizer, requests):
        for start in range(0, len(rows), 16):
            found += left_padded(model, tokenizer, rows[start : start + 16])
    return found


def pooled(model: Any, tokenizer: Any, requests: Requests) -> list[float]:
    """The same over all pairs, longest first, in batches of so many tokens, with the last logits alone."""
    rows = [row for some in rows_of(tokenizer, requests) for row in some]
    order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
    found = [0.0] * len(rows)
    while order:
        batch = order[: max(1, POOLED // len(rows[order[0]]))]
        values = left_padded(model, tokenizer, [rows[row] for row in batch], keep=1)
        for row, value in zip(batch, values, strict=True):
            found[row] = value
        order = order[len(batch) :]
    return found


def flat(answers: Any) -> list[float]:
    """The scores of several requests in one list."""
    return [score for scores in answers for score in scores]


class Table:
    """Lines of measurements, printed as they come, and written to a file of JSON."""

    def __init__(self, path: Path | None, device: str) -> None:
        self.rows: list[dict[str, Any]] = []
        self.path, self.device = path, device
        print(f"{'work':<44}{'way':<30}{'pairs':>7}{'pairs/s':>9}{'tokens':>9}{'TFLOP/s':>9}{'apart':>9}")

    def add(
        self, work: str, way: str, call: Callable[[], list[float]], *, repeats: int = 3, weights: int = 0,
        tokens: int = 0, against: list[float] | None = None, warm: Callable[[], Any] | None = None,
    ) -> list[float]:  # fmt: skip
        """Measure a *call* after one that warms up: its fastest run, and the largest difference to other scores."""
        (warm or call)()
        seconds = []
        for _ in range(repeats):
            self.wait()
            began = time.perf_counter()
            with metered() as meter:
                scores = call()
            self.wait()
            seconds.append(time.perf_counter() - began)
        fed, best = meter.usage.input_tokens or tokens, min(seconds)
        apart = float(np.abs(np.subtract(scores, against[: len(scores)])).max()) if against else 0.0
        row: dict[str, Any] = {"work": work, "way": way, "pairs": len(scores), "seconds": seconds, "tokens": fed}
        row |= {"pairs_s": len(scores) / best, "tflops": 2 * weights * fed / best / 1e12, "apart": apart}
        self.keep(row)
        return scores

    def keep(self, row: dict[str, Any]) -> None:
        """Print a line, and write all of them."""
        numbers = f"{row['pairs']:>7}{row['pairs_s']:>9.0f}{row['tokens']:>9}{row['tflops']:>9.1f}{row['apart']:>9.4f}"
        print(f"{row['work']:<44}{row['way']:<30}{numbers}", flush=True)
        self.rows.append(row)
        if self.path is not None:
            self.path.write_text(json.dumps(self.rows, indent=1) + "\n", encoding="utf-8")

    def wait(self) -> None:
        """Until the card has done what it was told."""
        if self.device == "cuda":
            torch.cuda.synchronize()


def ceiling(size: int = 8192) -> float:
    """TFLOP/s of a large matrix product in bfloat16 on random numbers."""
    left, right = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        left @ right
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(20):
        left @ right
    torch.cuda.synchronize()
    return 20 * 2 * size**3 / (time.perf_counter() - began) / 1e12


def by_rerankers(table: Table, shape: str, collections: dict[str, Requests], device: str, *, before: bool) -> None:
    """The lines of one size of causal rerankers; of an older checkout those *before* alone."""
    model, tokenizer = reranker(shape, device), tokenizer_of(collections)
    weights = sum(p.numel() for name, p in model.named_parameters() if "embed_tokens" not in name)
    if before:
        judge = YesNoJudge(model, tokenizer, instruction=INSTRUCTION)
        for name, requests in collections.items():
            some = requests[: COLLECTIONS[name][1]]
            work = f"reranker {shape}, {name} x {len(some[0][1])}"
            one_by_one = lambda some: flat(judge.score(*request) for request in some)  # noqa: E731
            table.add(
                work, "before", lambda some=some: one_by_one(some), repeats=1, weights=weights,
                warm=lambda some=some: one_by_one(some[:2]),
            )  # fmt: skip
        return
    never, now = (
        YesNoJudge(model, tokenizer, instruction=INSTRUCTION, compile_after=after) for after in (float("inf"), 0.0)
    )
    bases = {}
    for name, requests in collections.items():
        work, some = f"reranker {shape}, {name} x {len(requests[0][1])}", requests[: COLLECTIONS[name][1]]
        tokens = [sum(map(len, flat(rows_of(tokenizer, part)))) for part in (requests, some)]
        by_card = table.add(
            work, "model card", lambda some=some: card(model, tokenizer, some), repeats=1, weights=weights,
            tokens=tokens[1], warm=lambda some=some: card(model, tokenizer, some[:2]),
        )  # fmt: skip
        bases[name] = table.add(
            work, "pooled, padded", lambda requests=requests: pooled(model, tokenizer, requests), repeats=2,
            weights=weights, tokens=tokens[0], against=by_card * (len(requests) == len(some)),
        )  # fmt: skip
        apart = float(np.abs(np.subtract(by_card, bases[name][: len(by_card)])).max())
        print(f"{'':<44}{'(card and pooled differ by)':<30}{apart:>43.4f}")
        table.add(
            work, "ours, before it compiles", lambda requests=requests: flat(never.score_many(requests)),
            weights=weights, against=bases[name],
        )  # fmt: skip
    if shape != "4B":
        in_float32(table, shape, model, tokenizer, collections, never)
    for name, requests in collections.items():
        began, work = time.perf_counter(), f"reranker {shape}, {name} x {len(requests[0][1])}"
        now.score_many(requests)
        print(f"{'':<44}{'(the first call, compiled, took)':<34}{time.perf_counter() - began:.1f} s")
        table.add(
            work, "ours, compiled", lambda requests=requests: flat(now.score_many(requests)), weights=weights,
            against=bases[name],
        )  # fmt: skip
        if name == "metatool":
            table.add(work, "ours, by judge_all", lambda requests=requests: by_plan(now, requests), weights=weights)


def in_float32(
    table: Table, shape: str, model: Any, tokenizer: Any, collections: dict[str, Requests], judge: Any
) -> None:
    """The largest difference of each way to the scores in float32, pair by pair, over some pairs of each collection."""
    some = {name: requests[:4] for name, requests in collections.items()}
    found = {
        name: (card(model, tokenizer, few), flat(judge.score_many(collections[name]))) for name, few in some.items()
    }
    model = copy.deepcopy(model).float()
    for name, few in some.items():
        rows = flat(rows_of(tokenizer, few))
        exact = [left_padded(model, tokenizer, [row], keep=1)[0] for row in rows]
        for way, scores in zip(("model card", "ours"), found[name], strict=True):
            apart = float(np.abs(np.subtract(scores[: len(exact)], exact)).max())
            work = f"reranker {shape}, {name}, to float32"
            table.keep(
                {"work": work, "way": way, "pairs": len(exact), "pairs_s": 0, "tokens": 0, "tflops": 0}
                | {"apart": apart}
            )


def by_plan(judge: Any, requests: Requests) -> list[float]:
    """The same through `judge_all`, as `tttembed judge` asks."""
    from tttembed_rag.judging import Plan, ScoreCache, judge_all
    from tttembed_rag.rewards.observations import Served

    served = [
        Served.of_texts(f"q{at}", query, [(f"d{place}", text) for place, text in enumerate(texts)], "t")
        for at, (query, texts) in enumerate(requests)
    ]
    verdicts = judge_all(Plan(served, (len(requests[0][1]),), seed=None), judge, ScoreCache.open(None))
    return [reward for rewards in verdicts.rewards.values() for reward in rewards.values()]


def by_cross_encoders(table: Table, collections: dict[str, Requests], device: str, *, before: bool) -> None:
    """The lines of a cross-encoder of MiniLM's shape in float32, as it is stored."""
    tokenizer = tokenizer_of(collections, frame=True)
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(tokenizer), num_labels=1, max_position_embeddings=512, **MINILM)
    model = transformers.BertForSequenceClassification(config).to(device).eval()
    weights = sum(p.numel() for name, p in model.named_parameters() if "embeddings" not in name)
    judge = CrossEncoderJudge(model, tokenizer)
    if before:
        for name, requests in collections.items():
            work = f"cross-encoder, {name} x {len(requests[0][1])}"
            table.add(
                work, "before", lambda requests=requests: flat(judge.score(*one) for one in requests), weights=weights
            )
        return
    from sentence_transformers import CrossEncoder

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        rival = CrossEncoder(folder, device=device, activation_fn=torch.nn.Sigmoid())
    for name, requests in collections.items():
        work, pairs = (
            f"cross-encoder, {name} x {len(requests[0][1])}",
            [(q, text) for q, some in requests for text in some],
        )
        base: list[float] = []
        for size in (32, 128):
            base = table.add(
                work, f"sentence-transformers, {size}",
                lambda size=size, pairs=pairs: rival.predict(pairs, batch_size=size, show_progress_bar=False).tolist(),
            )  # fmt: skip
        table.add(
            work, "ours", lambda requests=requests: flat(judge.score_many(requests)), weights=weights, against=base
        )


def by_embedders(table: Table, collections: dict[str, Requests], device: str) -> None:
    """The lines of an embedder of MiniLM's shape; a pair is a text here."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    from tttembed_rag.embedders.local import LocalEmbedder

    tokenizer = tokenizer_of(collections, frame=True)
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=512, **MINILM)
    with tempfile.TemporaryDirectory() as folder:
        transformers.BertModel(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        parts = [modules.Transformer(folder), modules.Pooling(config.hidden_size, "mean")]
        model = SentenceTransformer(modules=parts, device=device).eval()
    ours = LocalEmbedder(model, name="random")
    for name, requests in collections.items():
        texts = list(dict.fromkeys(text for _, some in requests for text in some))
        exact = np.asarray(model.encode_document(texts, show_progress_bar=False, normalize_embeddings=True))

        def sums(vectors: Any) -> list[float]:
            return np.asarray(vectors)[:, :8].sum(axis=1).tolist()

        call = lambda texts=texts: sums(model.encode_document(texts, show_progress_bar=False))  # noqa: E731
        table.add(f"embedder, {name}", "sentence-transformers, 32", call)
        call = lambda texts=texts: sums(ours.embed_documents(texts))  # noqa: E731
        table.add(f"embedder, {name}", "ours", call, against=sums(exact))


def run(options: argparse.Namespace) -> None:
    """All lines, those of an older checkout first."""
    collections = texts_of(options.data) if options.pairs_file is None else json.loads(options.pairs_file.read_text())
    # As judges read them: without characters that only hide or reorder text.
    collections = {
        name: [(readable(query, _LONGEST), [readable(text, _LONGEST) for text in texts]) for query, texts in requests]
        for name, requests in collections.items()
    }
    if options.few > 0:
        collections = {name: requests[: options.few] for name, requests in collections.items()}
    name = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, transformers {transformers.__version__}")
    if options.device == "cuda":
        print(f"a matrix product in bfloat16: {ceiling():.0f} TFLOP/s")
    if options.before is not None:
        with tempfile.TemporaryDirectory() as folder:
            pairs = Path(folder) / "pairs.json"
            pairs.write_text(json.dumps(collections), encoding="utf-8")
            command = [sys.executable, __file__, "--old", "--pairs-file", str(pairs), "--device", options.device]
            command += ["--shapes", options.shapes]
            subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(options.before)})  # noqa: S603
    table, old = Table(options.json, options.device), options.old
    for shape in filter(None, options.shapes.split(",")):
        by_rerankers(table, shape, collections, options.device, before=old)
        gc.collect()
        torch.cuda.empty_cache()
    by_cross_encoders(table, collections, options.device, before=old)
    if not old:
        by_embedders(table, collections, options.device)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this table."""
    data = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=data, help="A folder of BEIR folders.")
    parser.add_argument("--pairs-file", type=Path, help="JSON of what `texts_of` draws, instead of --data.")
    parser.add_argument("--shapes", default="0.6B,4B", help="Sizes of rerankers.")
    parser.add_argument("--before", type=Path, help="An older checkout of this package.")
    parser.add_argument("--few", type=int, default=0, help="So many queries of each collection alone.")
    parser.add_argument("--old", action="store_true", help="Measure this checkout alone, as one before.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_options(parser)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", type=Path)
    run(parser.parse_args())
