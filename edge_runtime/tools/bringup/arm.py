"""The bus of the arm that a configuration names, for a person to work on."""

from __future__ import annotations

from edge_runtime.config import RobotConfig, SOFollowerConfig
from edge_runtime.errors import ConfigError
from edge_runtime.motors.bus import Bus
from edge_runtime.motors.port import adapters
from edge_runtime.robots import so_servos


def so_arm(config: RobotConfig) -> SOFollowerConfig:
    """`config`, if it is of an SO arm with a port; else ConfigError."""
    if not isinstance(config, SOFollowerConfig):
        raise ConfigError(f"robot.type: {config.get_choice_name(type(config))} is not an SO-100 or SO-101")
    if not config.port:
        raise ConfigError(f"robot.port: not given; serial adapters here: {', '.join(adapters()) or 'none found'}")
    return config


def bus_of(config: RobotConfig) -> Bus:
    return so_servos.bus_of(so_arm(config))
