"""Carries out the plan on the arm, and brings the arm to rest, also when this process cannot."""
