"""Real processes that die by SIGKILL, or sleep through SIGSTOP, at an instrumented point of a run.

probes     counts the calls of a run by kind, and raises a signal at a chosen one
child      what a process does: extract, load or clean, over probed ports
forks      a warm parent that forks such processes, and tells how they end
scenes     homes to run in, and what must hold in the end
"""

import pytest

pytest.register_assert_rewrite("kbq_assets_tests.crashes.killed", "kbq_assets_tests.crashes.scenes")
