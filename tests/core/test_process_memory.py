"""Memory that allocators keep for later goes back to the system; measured in a process of its own."""

import subprocess
import sys

import pytest

PROGRAM = """
import numpy as np, psutil
from latecomer.spark.engine.process_memory import release_unused
arrays = [np.ones(12_500) for _ in range(2_000)]  # 100 kB each, which the C library does not map one by one
last = np.ones(12_500)
del arrays[:]
kept = psutil.Process().memory_info().rss
release_unused()
print(kept - psutil.Process().memory_info().rss, last[0])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc is told")
def test_memory_below_an_array_that_is_in_use_goes_back():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[0]) > 150_000_000
