"""What every test starts from: the numpy engine where a test names none, and Ctrl-C as usual.

Which engines are installed here, and how the suite was started, must not change what a test runs.
"""

from __future__ import annotations

import os
import signal

os.environ.setdefault("STAGELINK_ENGINE", "numpy")

# A shell starts what it runs in the background with Ctrl-C ignored, and processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
