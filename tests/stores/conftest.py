"""What the tests of stores share."""

import pytest

pytest.register_assert_rewrite("tttembed_rag.testing")
