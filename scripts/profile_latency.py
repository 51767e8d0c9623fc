"""Where every millisecond of a round trip goes, and what to change first: `edge-runtime profile`, and a short form.

python -m scripts.profile_latency --bundle=policy_server/bundles/act_so101_cubes --html=profile.html
python -m scripts.profile_latency --server_address=192.168.1.20:8080 --jpeg_quality=0 --chunks=50
python -m scripts.profile_latency --robot.type=so101_follower --robot.port=/dev/ttyACM0 --robot.id=my_arm
python -m scripts.profile_latency --quick                                       # 20 round trips of a shipped policy
"""

from __future__ import annotations

import sys

from edge_runtime.program import flags
from edge_runtime.tools.profiler import cli

QUICK = ("--bundle=act_so101_cubes", "--chunk_size_threshold=1", "--chunks=20")


def main(argv: list[str]) -> int:
    theirs = [word for word in argv if word != "--quick"]
    return cli.main([*QUICK, *theirs] if len(theirs) < len(argv) else theirs)


if __name__ == "__main__":
    sys.exit(flags.run_main(main, sys.argv[1:], "profile_latency.py"))
