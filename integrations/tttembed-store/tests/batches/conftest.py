"""The batch service of these tests."""

from tests.batchserver import batch_server, gemini, running, served, spec

__all__ = ["batch_server", "gemini", "running", "served", "spec"]
