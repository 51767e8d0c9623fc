"""Where every millisecond of a round trip goes, and what to change first; the same as `edge-runtime profile`.

python scripts/profile_latency.py --bundle=policy_server/bundles/act_so101_cubes --html=profile.html
python scripts/profile_latency.py --server_address=192.168.1.20:8080 --jpeg_quality=0 --chunks=50
python scripts/profile_latency.py --robot.type=so101_follower --robot.port=/dev/ttyACM0 --robot.id=my_arm
"""

import sys

from edge_runtime import flags
from edge_runtime.profiler.cli import main

if __name__ == "__main__":
    sys.exit(flags.run_main(main, sys.argv[1:], "profile_latency.py"))
