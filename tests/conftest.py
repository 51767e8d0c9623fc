"""What every test starts from: signals as a terminal has them, and the same examples on a machine of any speed."""

from __future__ import annotations

import contextlib
import os
import signal

# Whoever starts the tests in the background may have had these ignored, and what we start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks a network

with contextlib.suppress(ImportError):  # the tests against LeRobot go without
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "any machine", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("any machine")
