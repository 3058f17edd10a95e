"""Assertions of the stories say what they saw, as those of test files do."""

import pytest

pytest.register_assert_rewrite("tests.multiprocess.job", "tests.multiprocess.scenarios")
