"""All is in pyproject.toml but this: EDGE_RUNTIME_POLICIES=none leaves the policies of the demo out of a wheel."""

import os

from setuptools import setup

slim = os.environ.get("EDGE_RUNTIME_POLICIES") == "none"
setup(exclude_package_data={"policy_server": ["bundles/*/*"]} if slim else {})
