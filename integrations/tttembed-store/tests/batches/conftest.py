"""The batch services of these tests, and workers that they may kill."""

from tests.batchserver import batch_server, gemini, running, served, service
from tests.workers import child

__all__ = ["batch_server", "child", "gemini", "running", "served", "service"]
