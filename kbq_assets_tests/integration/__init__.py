"""The pipeline as a whole, against the real broker, registry, store and DuckDB; only Spark is left out."""

import pytest

pytest.register_assert_rewrite("kbq_assets_tests.integration.world")
