"""Programs beside the run: doctor, bring-up, profiler, top, demo, fault replay."""
