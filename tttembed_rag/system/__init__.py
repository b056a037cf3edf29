"""The machine below: files, threads, terminals, telemetry; nothing of retrieval. Private: may change without notice."""
