"""Pairs per second of the local judges against their rivals: same weights, same machine, same threads, one run.

    python benchmarks/judge.py [--cross-encoder FOLDER] [--reranker FOLDER] [--repeats 3] [--json OUT.json]
    python benchmarks/judge.py --device cuda [--data FOLDER] [--before CHECKOUT] [--json OUT.json]

On a GPU it runs another table, of many queries: see `benchmarks/judgecard.py`.

Rivals: `CrossEncoder.predict` of sentence-transformers as it comes (it sorts by length, 32 pairs a batch), and the loop
of Qwen3-Reranker's model card in batches of 16, given one mercy: it computes the logits of the last position alone.
Documents are docstrings of the Python standard library, of mixed length. Without a folder the models have random
weights and the classes and tokenizers of the real ones: speed does not depend on what they learned.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks import judgecard
from benchmarks.callables import collect_callables
from tttembed_rag.judges import YesNoJudge, open_judge
from tttembed_rag.judges.yesno import BODY, PREFIX, SUFFIX

QUERY = "How do I read a file line by line without loading all of it into memory?"
CONVERSATION = "I asked before how to read large files, and was told to iterate over the open file object. " * 20
INSTRUCTION = "Given a question about Python, retrieve the function that answers it"


def documents(count: int) -> list[str]:
    """Cards of callables of the standard library, every third together with its neighbours."""
    cards = list(collect_callables().texts.values())
    order = np.random.default_rng(0).permutation(len(cards))[: 4 * count].reshape(count, 4)
    return [" ".join(cards[i] for i in (row if place % 3 == 0 else row[:1])) for place, row in enumerate(order)]


def tiny_tokenizer(texts: list[str]) -> Any:
    """A byte-level tokenizer with the turns of Qwen3, learned from *texts*."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=8000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*texts, *["yes", "no"] * 1000], trainer)
    turns = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer.add_special_tokens([AddedToken(turn, special=True, normalized=False) for turn in turns])
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **names)


def random_reranker(folder: Path, texts: list[str]) -> None:
    """A Qwen3 of six layers."""
    tokenizer = tiny_tokenizer(texts)
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=64,
        max_position_embeddings=8192,
        initializer_range=0.05,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def card_loop(model: Any, tokenizer: Any, query: str, texts: list[str], batch: int = 16) -> list[float]:
    """The model card's recipe, batch by batch."""
    prefix, suffix = (tokenizer.encode(part, add_special_tokens=False) for part in (PREFIX, SUFFIX))
    no, yes = tokenizer.convert_tokens_to_ids("no"), tokenizer.convert_tokens_to_ids("yes")
    bodies = [BODY.format(instruction=INSTRUCTION, query=query, document=text) for text in texts]
    found: list[float] = []
    for start in range(0, len(bodies), batch):
        some = tokenizer(bodies[start : start + batch], add_special_tokens=False, truncation="longest_first")
        ids = [prefix + body[: 8192 - len(prefix) - len(suffix)] + suffix for body in some["input_ids"]]
        inputs = tokenizer.pad({"input_ids": ids}, return_tensors="pt").to(model.device)
        with torch.inference_mode():
            logits = model(**inputs, logits_to_keep=1).logits[:, -1, [no, yes]].float()
        found += logits.log_softmax(1)[:, 1].exp().tolist()
    return found


def timed(calls: dict[str, Callable[[], Any]], repeats: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Median seconds of each call, taken in turns after one call that warms up, and what it returned."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    results = {name: call() for name, call in calls.items()}
    for _ in range(repeats):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times) for name, times in seconds.items()}, results


def row(
    workload: str, rival: str, target: float, pairs: int, ours: Callable[[], Any], theirs: Callable[[], Any], n: int
):
    """One line of the table, printed and returned."""
    seconds, results = timed({"ours": ours, "rival": theirs}, n)
    apart = float(np.abs(np.array(results["ours"]) - np.array(results["rival"])).max())
    line = {
        "workload": workload,
        "rival": rival,
        "pairs": pairs,
        "pairs_per_second": pairs / seconds["ours"],
        "rival_pairs_per_second": pairs / seconds["rival"],
        "ratio": seconds["rival"] / seconds["ours"],
        "target": target,
        "largest_difference": apart,
    }
    print(
        f"{workload:<44}{rival:<24}{pairs:>6}{line['pairs_per_second']:>9.1f}{line['rival_pairs_per_second']:>9.1f}"
        f"{line['ratio']:>8.2f}x{target:>7.1f}x{apart:>10.1e}",
        flush=True,
    )
    return line


def yesno_rows(options: argparse.Namespace, texts: list[str], folder: Path) -> list[dict[str, Any]]:
    """The table of causal rerankers."""
    if not options.reranker:
        random_reranker(folder, texts)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(options.device).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
    judge = YesNoJudge(model, tokenizer, instruction=INSTRUCTION)
    return [
        row(
            f"yes/no, {name}",
            "Qwen3-Reranker loop",
            target,
            len(some),
            lambda: judge.score(query, some),
            lambda: card_loop(model, tokenizer, query, some),
            options.repeats,
        )
        for name, query, some, target in (
            ("a question, mixed lengths", QUERY, texts, 1.5),
            ("a long query, short documents", CONVERSATION + QUERY, [text[:300] for text in texts], 2.0),
            ("a long query, mixed lengths", CONVERSATION + QUERY, texts, 2.0),
        )
    ]


def main() -> None:
    """Run the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cross-encoder", default="", help="A folder; without, ../shared/models/ce-minilm-multi.")
    parser.add_argument("--reranker", default="", help="A folder with a Qwen3-Reranker; without, random weights.")
    parser.add_argument("--rows", default="cross-encoder,yesno", help="Tables to run.")
    parser.add_argument("--pairs", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    judgecard.add_options(parser)
    options = parser.parse_args()
    if options.device != "cpu":
        judgecard.run(options)
        return
    from sentence_transformers import CrossEncoder

    transformers.utils.logging.disable_progress_bar()
    texts = documents(options.pairs)
    lengths = sorted(len(text) for text in texts)
    print(f"{len(texts)} documents of {lengths[0]} to {lengths[-1]} characters, median {lengths[len(lengths) // 2]}")
    print(f"{torch.get_num_threads()} threads, {options.device}, median of {options.repeats}\n")
    print(f"{'workload':<44}{'rival':<24}{'pairs':>6}{'pairs/s':>9}{'rival':>9}{'ratio':>9}{'target':>8}{'apart':>10}")
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.cross_encoder or Path(__file__).resolve().parents[2] / "shared" / "models" / "ce-minilm-multi"
        if "cross-encoder" in options.rows and Path(folder).is_dir():
            judge: Any = open_judge(f"cross-encoder:{folder}?device={options.device}")
            rival = CrossEncoder(str(folder), device=options.device, model_kwargs={"dtype": torch.float32})
            sigmoid = torch.nn.Sigmoid()
            for name, some, target in (
                ("mixed lengths", texts, 1.5),
                ("short documents", [text[:120] for text in texts], 1.0),
            ):
                rows.append(
                    row(
                        f"cross-encoder, {name}",
                        "CrossEncoder.predict",
                        target,
                        len(some),
                        lambda: judge.score(QUERY, some),
                        lambda: rival.predict([(QUERY, text) for text in some], activation_fn=sigmoid),
                        options.repeats,
                    )
                )
        if "yesno" in options.rows:
            rows += yesno_rows(options, texts, Path(options.reranker or temporary))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
