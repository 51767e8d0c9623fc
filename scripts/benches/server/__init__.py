"""The policy server under many robots that are all clock and no arm."""
