"""What every program of the package needs: flags, settings, files, output, logs, signals, systemd."""
