"""From a running application to rewards: which documents were shown for a query, and what a judge said of them.

`Learned` closes the circle in one process: it keeps what is served, fits offsets and serves them.

Private: may change without notice.
"""
