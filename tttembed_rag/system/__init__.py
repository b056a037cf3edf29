"""The machine below: files, threads, terminals and telemetry. Nothing here knows of retrieval.

Private: may change without notice.
"""
