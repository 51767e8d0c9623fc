"""The extension; setuptools calls its own table for it in pyproject.toml experimental, and warns at every build."""

from setuptools import Extension, setup

PARTS = ("exchange", "ring", "port", "feetech", "loop", "race")  # included by _realtime.pyx

setup(
    ext_modules=[
        Extension(
            "edge_runtime._realtime",
            ["cython_ext/_realtime.pyx"],
            depends=[f"cython_ext/{part}.pxi" for part in PARTS],
            extra_compile_args=["-O2", "-ffp-contract=off"],  # a fused multiply-add would differ from numpy and LeRobot
        )
    ]
)
