"""Models on this machine: the recipe, equality with a plain reference, text that stays text, memory."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from numpy.testing import assert_allclose

from tttembed_rag import InputError, JudgeError
from tttembed_rag.clients.local import Batches, PlainTokenizer
from tttembed_rag.clients.usage import metered
from tttembed_rag.judges import CrossEncoderJudge, YesNoJudge, check_judge, open_judge
from tttembed_rag.judges.yesno import BODY, PREFIX, SUFFIX

MODEL = Path(__file__).resolve().parents[3] / "shared" / "models" / "ce-minilm-multi"
QUERY = "How do I wash a wool jumper?"
DOCUMENTS = [
    "Use cold water and little soap.",
    "The river runs past the city. " * 12,
    "no",
    "Judge whether the old mill meets the requirements, provided it has water. " * 3,
    "é 水 \N{GRINNING FACE} yes",
]


def plain_loop(model, tokenizer, query, documents, instruction, max_tokens=8192):
    """The recipe of the model card, one padded batch, all logits."""
    prefix, suffix = (tokenizer.encode(part, add_special_tokens=False) for part in (PREFIX, SUFFIX))
    bodies = [BODY.format(instruction=instruction, query=query, document=text) for text in documents]
    room = max_tokens - len(prefix) - len(suffix)
    ids = tokenizer(bodies, add_special_tokens=False, truncation="longest_first", max_length=room)["input_ids"]
    inputs = tokenizer.pad({"input_ids": [prefix + body + suffix for body in ids]}, return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits[:, -1, :].float()
    no, yes = tokenizer.convert_tokens_to_ids("no"), tokenizer.convert_tokens_to_ids("yes")
    return torch.stack([logits[:, no], logits[:, yes]], 1).log_softmax(1)[:, 1].exp().tolist()


class TestYesNo:
    """Causal rerankers."""

    @pytest.mark.parametrize("batch_tokens", [150, 700, 100_000])
    def test_equals_the_plain_loop(self, reranker, batch_tokens):
        """Scores are those of the model card's loop, whatever the batches."""
        judge = YesNoJudge(*reranker, instruction="Find help", batch_tokens=batch_tokens)
        expected = plain_loop(*reranker, QUERY, DOCUMENTS, "Find help")

        assert max(expected) - min(expected) > 0.01  # or equality would say nothing
        assert_allclose(judge.score(QUERY, DOCUMENTS), expected, atol=1e-5)

    def test_padding_side_of_the_tokenizer_is_irrelevant(self, reranker):
        """Padding is ours: a tokenizer set to pad right gives the same scores."""
        model, tokenizer = reranker
        expected = YesNoJudge(model, tokenizer).score(QUERY, DOCUMENTS)
        tokenizer.padding_side = "right"
        try:
            scores = YesNoJudge(model, tokenizer).score(QUERY, DOCUMENTS)
        finally:
            tokenizer.padding_side = "left"

        assert expected == scores

    def test_truncation_cuts_the_document_alone(self, reranker):
        """A document beyond the limit loses its end, never the frame behind it."""
        long = "The river runs past the city. " * 80
        judge = YesNoJudge(*reranker, max_tokens=256)
        expected = plain_loop(*reranker, QUERY, [long, "no"], judge._instruction, max_tokens=256)

        with metered() as meter:
            scores = judge.score(QUERY, [long])
        assert_allclose(scores, expected[:1], atol=1e-5)
        assert meter.usage.input_tokens == 256

    def test_a_query_without_room_for_documents_is_not_judged(self, reranker):
        """Where the query alone fills the limit, nothing is made up."""
        judge = YesNoJudge(*reranker, max_tokens=256)

        assert judge.score("river " * 500, ["a", "b"]) == [None, None]

    def test_a_tokenizer_without_turns_is_an_error(self, reranker, classifier):
        """A tokenizer of another family is refused before it scores at random."""
        with pytest.raises(JudgeError, match=r"expected no, yes, <\|im_start\|> and .* to be one token each"):
            YesNoJudge(reranker[0], classifier[1])

    def test_loads_from_a_folder(self, reranker, reranker_folder):
        """The folder's judge is the same judge, by scores and by fingerprint."""
        loaded = open_judge(f"yesno:{reranker_folder}?device=cpu")
        made = YesNoJudge(*reranker, name="tiny-reranker")

        assert made.fingerprint == loaded.fingerprint
        assert_allclose(loaded.score(QUERY, DOCUMENTS), made.score(QUERY, DOCUMENTS), atol=1e-6)

    def test_instruction_and_weights_are_in_the_fingerprint(self, reranker):
        """Another instruction, and other weights under the same name, are another judge."""
        model, tokenizer = reranker
        other = copy.deepcopy(model)
        with torch.no_grad():
            other.model.norm.weight[0] += 1
        made = [YesNoJudge(model, tokenizer, instruction=text) for text in ("a", "b", "a")]

        assert len({judge.fingerprint for judge in made}) == 2
        assert made[0].fingerprint != YesNoJudge(other, tokenizer, instruction="a").fingerprint

    def test_no_such_model_is_an_error(self, tmp_path):
        """A folder without a model is an error of one line that names it."""
        with pytest.raises(JudgeError, match=r"expected a model that transformers can load \([^\n]*$") as caught:
            open_judge(f"yesno:{tmp_path}")

        assert tmp_path.name in str(caught.value)


class TestCrossEncoder:
    """Sequence classifiers."""

    def test_a_downloaded_model_needs_no_hub(self, classifier_folder, downloaded):
        """Where the hub is away, its copy on this machine gives the same scores."""
        scores = open_judge(f"cross-encoder:{downloaded(classifier_folder)}?device=cpu")
        expected = open_judge(f"cross-encoder:{classifier_folder}?device=cpu")

        assert expected.score(QUERY, DOCUMENTS) == scores.score(QUERY, DOCUMENTS)

    def test_what_gives_no_one_score_is_an_error(self, classifier):
        """A classifier with three labels; a cross-encoder gives logits or probabilities, nothing else."""
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(vocab_size=99, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, num_labels=3)
        with pytest.raises(InputError, match="expected a classifier with one label, got 3"):
            CrossEncoderJudge(BertForSequenceClassification(config), classifier[1])
        with pytest.raises(InputError, match=r"^scale: expected probability or logit .*, got 'rubric'$"):
            CrossEncoderJudge(*classifier, scale="rubric")

    @pytest.mark.data
    @pytest.mark.skipif(not MODEL.is_dir(), reason=f"needs {MODEL}")
    def test_a_real_one_passes_the_examination(self):
        """A real small cross-encoder tells plainly good documents from plainly bad ones."""
        judge = open_judge(f"cross-encoder:{MODEL}?device=cpu")

        check_judge(judge)
        good, bad = judge.score("What is the capital city of France?", ["Paris is the capital of France.", "Rust."])
        assert good > bad


class TestPlainText:
    """Text that names a token of structure."""

    def test_other_text_is_tokenised_as_ever(self, reranker):
        """Text without such names gets the tokens it always had."""
        tokenizer = reranker[1]

        assert tokenizer(DOCUMENTS, add_special_tokens=False)["input_ids"] == PlainTokenizer(tokenizer).ids(DOCUMENTS)

    def test_pieces_that_are_structure_become_question_marks(self):
        """A unigram vocabulary that holds `</s>` as a piece cannot be talked into it."""
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast

        pieces = [("<unk>", 0.0), ("</s>", 0.0), ("?", -5.0), *((letter, -5.0) for letter in "abs</>")]
        unigram = Tokenizer(models.Unigram(pieces, unk_id=0))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=unigram, unk_token="<unk>", eos_token="</s>")  # noqa: S106
        (ids,) = PlainTokenizer(tokenizer).ids(["a</s>b"])

        assert ids == [3, 2, 4]


class TestBatches:
    """Batches by length, smaller when memory ends."""

    @pytest.mark.parametrize(
        ("tokens", "lengths", "shared", "batches"),
        [(10, [2, 5, 1, 4, 3], 0, [[1, 3], [4, 0, 2]]), (30, [5] * 6, 10, [[0, 1], [2, 3], [4, 5]])],
    )
    def test_values_come_back_in_order(self, tokens, lengths, shared, batches):
        """Rows are run longest first and returned as they came; what is kept for every row leaves room for fewer."""
        ran = []

        def forward(rows):
            ran.append(rows)
            return torch.tensor([float(row) for row in rows])

        assert Batches(tokens, "cpu").run(lengths, forward, shared=shared) == list(range(len(lengths)))
        assert ran == batches

    def test_backs_off_when_memory_ends(self):
        """Out of memory halves the batch, remembers it, and loses no row."""
        sizes = []

        def forward(rows):
            sizes.append(len(rows))
            if len(rows) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return torch.tensor([float(row) for row in rows])

        batches = Batches(80, "cpu")
        assert [float(row) for row in range(8)] == batches.run([10] * 8, forward)
        assert sizes == [8, 4, 2, 2, 2, 2]
        assert batches.tokens == 20

    @pytest.mark.parametrize(
        ("raised", "expected", "message"),
        [
            (torch.OutOfMemoryError("CUDA out of memory"), JudgeError, "expected 12 tokens to fit in memory"),
            (RuntimeError("shape mismatch"), JudgeError, r"^judge: expected 1 scores .* RuntimeError .*shape mismatch"),
        ],
    )
    def test_what_halving_does_not_help_is_an_error(self, raised, expected, message):
        """A row too large for the machine is told with its size, and a bug is not mistaken for a lack of memory."""

        def forward(_):
            raise raised

        with pytest.raises(expected, match=message):
            Batches(80, "cpu").run([5], forward, shared=7)


@pytest.mark.parametrize(
    ("judge", "spec"), [(CrossEncoderJudge, "cross-encoder:PATH"), (YesNoJudge, "yesno:PATH")], ids=["scores", "yesno"]
)
def test_a_path_is_no_model(judge, spec):
    """What loads one is named."""
    with pytest.raises(InputError, match=rf"got none: open_judge\('{spec}'\) loads both$"):
        judge("/models/mine")
