"""Haystack reports its use to its makers unless it is told not to."""

import os

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
