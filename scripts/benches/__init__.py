"""The measurements, each a program: `python -m scripts.benches.NAME`; `make bench` runs those that know `--quick`."""
