"""What every test starts from: signals as a terminal has them."""

from __future__ import annotations

import signal

# Whoever starts the tests in the background may have had these ignored, and what we start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
