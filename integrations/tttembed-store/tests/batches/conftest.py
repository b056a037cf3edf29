"""The batch services of these tests."""

from tests.batchserver import batch_server, gemini, running, served, service

__all__ = ["batch_server", "gemini", "running", "served", "service"]
