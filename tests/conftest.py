"""Settings of all tests: one thread for torch, since the tests themselves run side by side."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
