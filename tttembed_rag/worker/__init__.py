"""`Worker`: judge, fit, gate and publish again and again, on new evidence only.

A round goes over every tenant of a store. Its steps, by their `Action`, with what leads to them:

    judge     pairs wait ──────────────────► judged            the judge broke down ──► not judged
    probe     the model cannot be asked ───► not probed        nothing is learned in this round
              another model than before ───► halted            the same again, or a version for it ──► resumed
    guard     the live version was tried ──► looked            traffic has changed ──► drifted
              two looks in a row against it ─► rolled back     to the version before, or to base vectors
    learn     too little is new ───────────► learned nothing
              enough is new: fit and gate
                  the gate serves it ──────► published
                  it withholds all, and the live version serves nothing ──► abstained
                  it withholds all for the first time ────────────────────► kept
                  it withholds all for the second time in a row ──────────► withdrawn

A second worker is on standby until the first one ends or its lease does. A tenant with something broken has failed; the
others go on.
"""

from tttembed_rag.worker.probe import Probe
from tttembed_rag.worker.rounds import Worker
from tttembed_rag.worker.steps import Action, Round, Step

__all__ = ["Action", "Probe", "Round", "Step", "Worker"]
