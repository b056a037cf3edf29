"""Every number that the gate learns and decides by, with its reason, and the questions that it asks.

The dose of an offset is `Recipe.dose`, and how near two queries are to be one question is `vectors.copies.NEAR`.

"Development" is the first half of the collections in `benchmarks/harm.py`: choices were made there, and only there.
"""

from __future__ import annotations

from dataclasses import dataclass

from tttembed_rag.fitting.scopes import UNSOLVED as UNSOLVED_CODE
from tttembed_rag.vectors.copies import NEAR

# One-sided level of every bound: of what is published, of the two ends of the 90 % interval, of "contradicts".
LEVEL = 0.05
# Level at which rewards are believed to mean something. Worthless judges agree with the retriever by chance in as many
# tasks; the level leaves room for the second question, which is asked at `LEVEL`.
BELIEVED_LEVEL = 0.005
# Level at which agreement with the retriever alone is believed, where next to no document was judged for two queries.
STRICT_LEVEL = 0.0005
# Pairs of documents judged for two queries or more below which their variance says nothing.
FEW_PAIRS = 10
# Share of the variance of rewards that lies within documents. Judges that never look at the query have 0 (.2 with
# noise of half their spread), labels and a cross-encoder .4 to .6 on development (`benchmarks/poison.py blind`).
VARIES = 0.25
# How far the retriever's own order of the judged candidates lies below the judge's, in nDCG@10, at least. The least of
# true judges on development is .02 (seal-tools).
LEAST_HEADROOM = 0.005
# One-sided level at which trusted labels must confirm a shared offset, which held-out rewards support at `LEVEL`
# already. A private one has passed no such test, so that labels alone must confirm it, at `LEVEL`. The first was chosen
# on metatool with MiniLM and LSA (`benchmarks/poison.py audit`).
AUDIT_LEVEL = 0.2
# Folds of cross-fitting: each query is held out once, learned from the other four fifths.
FOLDS = 5
# The global offset meets tasks without rewards: it must have helped tasks that it did not see, at least this many.
MIN_TASKS = 4

# A document that is the best of more queries than this, and than this share of them, has one vote of each source.
BEST_LEAST = 3
BEST_SHARE = 0.05
# By how much an offset may raise the share of queries whose list holds a document, and in how many queries at least.
# The document that rises most rises by .10 in nine of ten clean fits from 64 rewarded queries; those that rise by more
# have rewards that vary by .7 of the variance of all or more on development (`benchmarks/poison.py clean`).
MOST_RISE = 0.20
# The same for a document that sources alone reward. With .20 for these too, twenty accounts lifted a document into a
# fifth of all lists without being noticed (`benchmarks/poison.py sources`, seal-tools).
MOST_RISE_OF_SOURCES = 0.10
MOST_RISEN_QUERIES = 3
# The length of a list, or a tenth of what was judged where that is less; and queries that are looked at.
LISTED = 10
EXPOSED_QUERIES = 250
# How often an offset is learned anew without the documents that rose.
EXPOSURE_ROUNDS = 4

# Temperatures and ridge of gated offsets, as multiples of the recipe's, which are the paper's. Mean gain of the local
# offset over 66 fits on development, one to two rewarded queries in ten: +.036 at 2.5 and 2, +.031 at 2.5 and 1.5.
TEACHER_STEP = 2.5
STUDENT_STEP = 2.0
RIDGE_STEP = 10**0.5
# Candidates of a query that are learned from. The grid of all candidates is as wide as its deepest query.
MOST_CANDIDATES = 200
# Teacher temperatures, at least, between the best and the worst candidate of a query: a judge with tiny numbers says
# as much as one that uses its scale.
SHARPNESS = 5.0
# Unjudged candidates that join each judged one. On development three taught no more than two, at twice the cost.
NEIGHBOURS = 2
# Fold offsets are solved to this many tolerances of the recipe: a fall of the loss needs no more digits.
LOOSER = 30.0

# How far the fall of the loss of one query lies from the mean fall, in nats (median of 200 fits on development), and
# how many observations that knowledge is worth: a few queries that agree by luck are no certainty.
TYPICAL_FALL = 0.2
TYPICAL_WEIGHT = 4.0
# Change of nDCG@10 of the full search for each nat by which the held-out loss falls, and what remains unknown about
# it: a share of itself, and a constant. The 90 % interval holds the change in 85 to 95 % of published cells.
NDCG_PER_NAT = 0.27
NDCG_SHARE = 0.5
NDCG_ERROR = 0.011


@dataclass(frozen=True, slots=True)
class Question:
    """A question that the gate asks.

    Attributes:
        code: Stable name of the answer that decides against an offset.

        asks: The question.

        test: How it is answered.

        answer: What the offset's evidence says where the question decides against it.

        advice: What its owner can do.
    """

    code: str
    asks: str
    test: str
    answer: str
    advice: str


PUBLISHED = "TTT-G00"
FEW = Question(
    "TTT-G01",
    "Are there two rewarded queries?",
    f"Queries within cosine {NEAR:g} of each other count as one.",
    "{n} rewarded query cannot be held out from itself",
    "Judge more queries; or serve this one alone with scope='query', gate=False.",
)
SINGLE = Question(
    "TTT-G15",
    "Was more than one candidate of a query judged?",
    "At least one query has two judged candidates.",
    "one candidate of each query was judged, so there is no order to learn",
    "Log what was shown and not chosen, too: in a file of votes as rows with click or success 0. For calls of tools "
    "`LearnedToolSearch` compares with what the search listed: see [tools](../tools.md).",
)
EQUAL = Question(
    "TTT-G02",
    "Do the rewards of any query differ?",
    "The best reward of a query lies above its worst.",
    "every candidate of a query has the same reward, so nothing says which is better",
    "Judge several candidates of each query, with a judge that grades them differently.",
)
BACKWARDS = Question(
    "TTT-G03",
    "Do the rewards contradict the retriever?",
    f"Permutation test within queries: agreement with the retriever is not below zero (p < {LEVEL:g}).",
    "the rewards contradict the retriever's order, as an inverted judge's do",
    "Check that larger rewards are better, and that candidates that were not judged are left out, not zero. Of clicks, "
    "leave the column `position` out where all documents are seen at once: with it, what stands above and is not "
    "clicked counts as worse than what stands below.",
)
NOISE = Question(
    "TTT-G04",
    "Do the rewards agree with the retriever?",
    f"Permutation test within queries: agreement is above chance (p < {BELIEVED_LEVEL:g}).",
    "the rewards agree with the retriever no more than rewards without meaning might",
    "Judge more queries; check the judge with tttembed_rag.judges.check_judge.",
)
BLIND = Question(
    "TTT-G05",
    "Does the judge look at the query?",
    f"Permutation test within documents: a document's rewards follow what is asked (p < {LEVEL:g}). Where too few "
    f"documents recur, more than {VARIES:.0%} of the variance of rewards lies within documents.",
    "a document's rewards do not depend on what is asked",
    "Check the judge's prompt; judge more queries that share documents. Of calls of tools, log those that were listed "
    "and not called, too, or let `LearnedToolSearch` learn from them: see [tools](../tools.md).",
)
NO_FALL = Question(
    "TTT-G06",
    "Does the loss of held-out queries fall?",
    f"Cross-fitting in {FOLDS} folds: the mean KL loss of judged and neighbouring candidates falls.",
    "held-out queries are ranked no better",
    "Judge more queries; different queries of the task may want different things.",
)
UNSURE = Question(
    "TTT-G07",
    "Is the fall certain?",
    f"Its lower bound at one-sided level {LEVEL:g} (Student's t) is above zero.",
    "the improvement on held-out queries is within its error",
    "Judge about as many more queries as the evidence says.",
)
SURPASSED = Question(
    "TTT-G08",
    "Does no other offset of the task do better?",
    "Its fall of the held-out loss is the largest.",
    "{other} lowers the held-out loss more",
    "Nothing: the other offset is served.",
)
UNSOLVED = Question(
    UNSOLVED_CODE,
    "Did the solver reach an optimum?",
    "The gradient norm is below the tolerance.",
    "the solver stopped at gradient norm {norm}, not at an optimum",
    "Raise the ridge or the tolerance.",
)
EXPOSED = Question(
    "TTT-G10",
    "Does no document rise into everybody's list?",
    f"No offset raises the share of rewarded queries whose first {LISTED} hold a document by over {MOST_RISE:.0%} "
    f"({MOST_RISE_OF_SOURCES:.0%} where sources alone reward it), unless the declared judge's rewards of it vary by "
    f"more than {VARIES:.0%} of the variance of all, and do not contradict the retriever (p < {BELIEVED_LEVEL:g}). One "
    f"that rises otherwise is taken as unjudged, and the offset is learned again, {EXPOSURE_ROUNDS - 1} times at most.",
    "documents rise into too many lists",
    "Look at the documents that are named: the judge overrates them, or somebody planted them.",
)
ONE_SOURCE = Question(
    "TTT-G11",
    "Does the loss fall without the strongest source?",
    "Learned and measured without the source that has most voices, the mean loss of held-out queries still falls.",
    "without the strongest source they are ranked no better",
    "Collect rewards from more sources, or judge with a declared judge.",
)
ALONE = Question(
    "TTT-G12",
    "Does more than one source stand behind a private offset?",
    "Two sources, or the declared judge, rewarded the query.",
    "one source alone rewarded the query",
    "Wait for a second source, or judge the query with a declared judge.",
)
ECHO = Question(
    "TTT-G13",
    "Does the judge ever disagree with the retriever?",
    f"By the judge's rewards, the retriever's order of the candidates has a mean nDCG@10 below {1 - LEAST_HEADROOM:g}.",
    "the judge repeats the retriever's order, so there is nothing to learn from it",
    "Check that rewards are the judge's own, and not made from places or similarities.",
)
AUDITED = Question(
    "TTT-G14",
    "Do trusted labels confirm the gain?",
    "Tuned prediction-powered inference: the change of DCG@10 of what was judged, corrected by the labels of an audit, "
    f"has a lower bound above zero at one-sided level {AUDIT_LEVEL:g}, of private offsets at {LEVEL:g}; and the labels "
    "confirm some of the judge's order.",
    "trusted labels do not confirm it: {found}",
    "Label more of the pairs that `tttembed audit draw` asks for; mend the judge.",
)
QUESTIONS = (
    FEW,
    SINGLE,
    EQUAL,
    BACKWARDS,
    NOISE,
    BLIND,
    NO_FALL,
    UNSURE,
    SURPASSED,
    UNSOLVED,
    EXPOSED,
    ONE_SOURCE,
    ALONE,
    ECHO,
    AUDITED,
)
