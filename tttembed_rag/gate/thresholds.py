"""Every number that the gate decides by, with its reason."""

from __future__ import annotations

# One-sided level at which the gain must be above zero: one standard error, where queries are many. For tasks that have
# no say in what is served to them it is `INTERVAL_LEVEL`, 1.6 standard errors.
GAIN_LEVEL = 0.16
# The student temperature of all gated offsets, as a multiple of the recipe's, and the ridges raced by shared ones.
# Held-out gain over 40 fits with a direction on the development half of benchmarks/harm.py: +.047 (.05 at ridge 0.3),
# +.050 (.1 at 0.3), +.052 (.1 at 0.95), and with that the loss where there is one from -.008 to -.003. A third ridge,
# 1, kept more but harmed more. Private offsets of 24 such fits: +.108 by the plain rule, +.115 told of neighbours
# (three then), +.121 at .1.
TEMPERATURE_STEP = 2.0
RIDGE_STEPS = (10**0.5, 10.0)
# Teacher temperatures between the best and the worst candidate of a query, at least: a judge whose numbers are all tiny
# says as much as one that uses its scale. Private offsets of 40 queries, LLM grades times .03 / .01: +.001 / -.028 with
# .02 as it stands, +.055 with the grades as they are.
SHARPNESS = 5.0
# A global offset meets unseen tasks only if it helped tasks it did not see: at least this many.
MIN_TASKS = 4

# Deals of each query's rewards, and how often rewards that mean nothing beat all of them, 0.5 %. They are asked two
# such questions, so a worthless judge passes in at most 1 % of tasks, and by the second only if there is a gain too.
DEALS = 199
NOISE_LEVEL = 1 / (DEALS + 1)
FOLDS = 5
# One-sided level of the bounds of the change of the search, together a 90 % interval, and of what is held for a fact
# where a fact would forbid: an inverted judge.
INTERVAL_LEVEL = 0.05
# How far the change of the full search lies from the gain on judged candidates, beyond sampling error: root mean
# square per share of the first ten that is displaced, over 165 offsets that displace 5 % or more on the development
# half of benchmarks/harm.py. There 87 % of the intervals of published offsets held the change.
SURFACED = 0.12
# How far the gain of one query typically lies from the mean gain (.05 to .15 over 45 fits of five of those sets),
# and how many observations that knowledge is worth.
TYPICAL = 0.1
TYPICAL_WEIGHT = 4.0
# How much more agreement with the retriever counts than likeness of like-rewarded candidates. Of 216 sets of rewards of
# 4 to 16 queries of the development half the two know 75 % (with weights 1 and 3 66 and 73 %, agreement alone 68 %,
# likeness alone 19 %), and of 108 inverted ones 1 % (3, 0, 0 and 20 %).
AGREEMENT = 2.0
# A held-out gain is a matter of order, not of digits: fold offsets are solved to this many tolerances. In 72 fits
# of real rewards no verdict was another one than at 10.
LOOSER = 30.0
# Findings in words.
CONTRADICT = f"contradict the retriever's order more than {1 - INTERVAL_LEVEL:.0%} of random shuffles of them"
KNOW = f"know the documents better than any of {DEALS} random shuffles of them"
NOISE = "say no more than random shuffles of them might"
RECURRING = "pull alike no more than documents would that have a random score each, whatever is asked"
