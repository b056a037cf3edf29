"""Names that the worker and the store share: the worker's lease, and the states that a worker keeps per tenant.

The store must know them because forgetting deletes every state that was derived from rewards, and takes the lease from
a worker that may be learning from what was forgotten.
"""

from __future__ import annotations

# The lease of the one worker that learns.
WORKER_LEASE = "worker"
# How far a worker is with a tenant: a JSON object.
MEMORY = "worker"
# The rewards a worker has learned from, and the trial of the live version.
LEARNED, TRIAL = "learned", "trial"
# The drifts that were found, oldest first: a JSON list for reports.
DRIFT = "drift"
# The identity of the tenant's embedding model.
PROBE = "probe"

# States that are derived from rewards: forgetting deletes them.
DERIVED = (LEARNED, TRIAL, DRIFT)
# Fields of `MEMORY` that outlive forgetting: models that changed, and rollbacks.
REMEMBERED = ("since", "contradicted", "fresh")
