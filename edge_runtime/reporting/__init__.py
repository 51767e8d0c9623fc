"""What a run tells: summary, metrics, status line, queue log, fault records."""
