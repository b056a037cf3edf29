"""From a running application to rewards: which documents were shown for a query, and what a judge said of them.

Private: may change without notice.
"""
