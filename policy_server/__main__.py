"""`python -m policy_server`: the same as `policy-server`."""

import sys

from policy_server.cli import main

sys.exit(main())
