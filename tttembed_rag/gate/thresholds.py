"""Every number that the gate learns and decides by, with its reason; its questions are in `gate.questions`.

The dose of an offset is `Recipe.dose`, and how near two queries are to be one question is `vectors.copies.NEAR`.

"Development" is the first half of the collections in `benchmarks/harm.py`: choices were made there, and only there.
"""

from __future__ import annotations

# One-sided level of every bound: of what must be proven, of the two ends of the 90 % interval, of "contradicts".
LEVEL = 0.05
# Level at which the data vouch for a judge. Worthless judges agree with the retriever by chance in as many tasks.
BELIEVED_LEVEL = 0.005
# The same where next to no document was judged for two queries, so that nothing tells whether the judge reads them.
STRICT_LEVEL = 0.0005
# Pairs of documents judged for two queries or more below which their variance says nothing.
FEW_PAIRS = 10
# Share of the variance of rewards that lies within documents. Judges that never look at the query have 0 (.2 with
# noise of half their spread), labels and a cross-encoder .4 to .6 on development (`benchmarks/poison.py blind`). A
# judge overrates a document whose rewards have less than this share of the mean variance within documents.
VARIES = 0.25
# How far the retriever's own order of the judged candidates lies below the judge's, in nDCG@10, at least. The least of
# true judges on development is .02 (seal-tools).
LEAST_HEADROOM = 0.005
# One-sided level at which trusted labels must confirm an offset that held-out rewards support already, and a private
# one, which has passed no such test. The first was chosen on metatool with MiniLM and LSA (`benchmarks/poison.py
# audit`).
AUDIT_LEVEL = 0.2
AUDIT_ALONE_LEVEL = 0.05
# Who is believed to be better than the retriever: a gain is published where it is expected.
BELIEVERS = ("trusted labels", "its declaration")
# By how much more the rewards of a judge that may know nothing but words correlate with BM25 than with similarity: its
# held-out rewards confirm its follies, and words follow them. It is .2 to .6 where BM25 or another embedder as judge
# takes .02 to .08 from v(x), at most .1 with labels, and with a cross-encoder but on static vectors. From such a judge,
# where the data alone vouch, words are learned if similarity and BM25 correlate by so much: with MiniLM on development
# that is .35 to .39 where BM25 as the judge takes .07 (metatool), .59 to .75 elsewhere (`benchmarks/words.py`).
LEANING = 0.1
AGREEMENT = 0.5
# Folds of cross-fitting: each query is held out once, learned from the other four fifths.
FOLDS = 5
# The global offset meets tasks without rewards: it must have helped tasks that it did not see, at least this many.
MIN_TASKS = 4
# Of the tasks that sources alone rewarded, those with the most votes have offsets of their own, so many: anybody makes
# tasks, and each takes 10 to 30 ms.
MOST_VOTED = 200

# By how much an offset may change the share of queries whose list holds a document with doubtful rewards, up or down,
# and in how many queries at least. With .20, twenty accounts lifted a document into a fifth of all lists without being
# noticed (`benchmarks/poison.py sources`, seal-tools).
MOST_MOVED = 0.10
MOST_MOVED_QUERIES = 3
# Places of a list that are looked at, or a tenth of what was judged where that is less; and queries.
PLACES_EXPOSED = 10
EXPOSED_QUERIES = 250
# How often an offset is learned anew without doubtful rewards of the documents that moved.
EXPOSURE_ROUNDS = 4

# Temperatures and ridge of gated offsets, as multiples of the recipe's, which are the paper's; all but the teacher's in
# spreads of cosines. Mean gain of the local offset over 66 fits on development, one to two rewarded queries in ten:
# +.036 at 2.5 and 2, +.031 at 2.5 and 1.5.
TEACHER_STEP = 2.5
STUDENT_STEP = 2.0
RIDGE_STEP = 10**0.5
# Candidates of a query that are learned from. The grid of all candidates is as wide as its deepest query.
MOST_CANDIDATES = 200
# The bandwidth of a local offset around a constant one that is served already, as a share of that of the queries: what
# queries have in common is said, and what is left is each one's own. Around means of languages 16, 64 and 150 verdicts
# would gain +.001, +.002 and +.004 at .25, and -.003, -.002 and -.001 at .5 (`benchmarks/language.py`, four splits).
NARROWER = 0.25
# Teacher temperatures, at least, between the best and the worst candidate of a query: a judge with tiny numbers says
# as much as one that uses its scale.
SHARPNESS = 5.0
# Fold offsets are solved to this many tolerances of the recipe: a fall of the loss needs no more digits.
LOOSER = 30.0

# How far the fall of the loss of one query lies from the mean fall, in nats (median of 200 fits on development), and
# how many observations that knowledge is worth: a few queries that agree by luck are no certainty.
TYPICAL_FALL = 0.2
TYPICAL_WEIGHT = 4.0
# The fall that is expected of a judge that somebody vouches for before anything was measured, worth one observation. On
# development with MiniLM, 1 to 8 rewarded queries, .2 gains other queries +.003, .004, .007 and .010, and 0 gains them
# 0, .003, .006 and .009; no mean of twelve splits of a collection is below -.003.
EXPECTED_FALL = 0.2

# The gain expected of such a judge before anything was measured, as a share of what its own order gains, and its
# standard error; the gain, with what was measured, above which an unproven offset is served; and how far the gain of
# one query lies from the mean. With MiniLM, static vectors and LSA, 4 to 200 rewarded queries of labels and rerankers,
# development keeps 99 % of what an expected fall alone serves, and 1.2 % of cells lose more than .01 instead of 3.9 %;
# the others keep 103 %, and 2.3 % lose so much instead of 5.7 %.
EXPECTED_SHARE = 0.25
EXPECTED_ERROR = 0.015
LEAST_EXPECTED = 0.01
TYPICAL_GAIN = 0.03

# How far the loss of one query by reranking less deep lies from the mean loss, in nDCG@10, worth as many observations;
# the one-sided level of the bound; and the depths that are looked at.
TYPICAL_LOST = 0.1
CERTIFIED_LEVEL = 0.1
DEEPEST = 100
# Queries below which no list is served without a reranker, and the loss above which it is not looked at.
FEWEST_CERTIFIED = 60
MOST_LOST = 0.05

# Of the likelihood that a candidate is relevant: the weights of cosine, cosine above the median of the list, and share
# of the query's words, each in its own deviation, and the ridge around them. They are the mean of what 200 judged
# queries of six collections teach, and alone refuse nearly as many queries that have no answer. The weight of likeness
# to other queries, below its mean, is not learned, as no own query says what others look like: of .25, .5, .75 and 1
# this one refuses most (`benchmarks/nothing.py`).
# The offsets behind it are learned from all but one of so many folds: those of four fifths are shorter than the one
# that is served, and under e5 lists looked so much better that twice as many answers were lost as were certified.
FINE_FOLDS = 40
FLOOR_PRIOR = (0.45, 0.54, 0.42)
FLOOR_RIDGE = 20.0
FLOOR_ALIKE = 0.75
