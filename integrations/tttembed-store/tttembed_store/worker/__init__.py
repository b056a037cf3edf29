"""`Worker`: judge, fit, gate and publish again and again, on new evidence only.

A round goes over the tenants of a store with something to do. Its steps, by their `Action`, with what leads to them:

    judge     pairs wait ──────────────────► judged            the judge broke down ──► not judged
    probe     the model cannot be asked ───► not probed        nothing is learned in this round
              another model than before ───► halted            the same again, or a version for it ──► resumed
    guard     the live version was tried ──► looked
              fresh rewards say it harms ──► rolled back       to the version before, or to base vectors
    learn     too little is new ───────────► learned nothing
              enough is new: fit and gate
                  the gate serves it ──────► published
                  it withholds all, and the live version serves nothing ──► abstained
                  it withholds all, and nothing speaks against what is live ──► kept
                  evidence speaks against what is live ────► withdrawn

A `Learner` takes the place of the last step where lists are made in another way, as those of a search over tools.

Any number of workers share a store: one works for a tenant at a time, and a worker is on standby where others work for
all tenants with something to do. A tenant with something broken has failed; the others go on.

Private: may change without notice.
"""

from tttembed_rag.vectors.probe import Probe
from tttembed_store.worker.rounds import Worker
from tttembed_store.worker.steps import Action, Step
from tttembed_store.worker.tenant import GROWTH, Findings, Learner, Tenant

__all__ = ["GROWTH", "Action", "Findings", "Learner", "Probe", "Step", "Tenant", "Worker"]
