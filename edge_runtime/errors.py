"""Every error this project raises on purpose, and the exit code each becomes.

EdgeRuntimeError                     exit 70
├─ UsageError                        exit 64   the command line
├─ ConfigError(ValueError)           exit 78   contents of a configuration, calibration, provider
├─ DeviceError                       exit 74   serial port, servo, camera
│  ├─ BusError                       port, motor id, last packet
│  │  └─ BusTimeout(TimeoutError)
│  ├─ CameraError
│  └─ ActuatorFault                  carries the last few hundred ticks
│     └─ FollowingFault              not started again
├─ AccessError                       exit 77   token, certificate or device permission refused
├─ OutputError                       exit 73   cannot create a file, listen address in use
├─ StreamError                       exit 69   transient: retried with back-off until give_up_after_s
├─ ProtocolError                     exit 76   the peer spoke wrongly: version, names, shape; not retried
└─ ModelError                        exit 65   bundle or checkpoint
"""

from __future__ import annotations

from typing import Any


class EdgeRuntimeError(Exception):
    """The root: a sentence for the user, and the exit code of a program that ends with it."""

    exit_code = 70


class UsageError(EdgeRuntimeError):
    """The command line names something that is not there."""

    exit_code = 64


class ConfigError(EdgeRuntimeError, ValueError):
    """A setting has a value that cannot work."""

    exit_code = 78


class DeviceError(EdgeRuntimeError):
    """Hardware is missing, is not what was asked for, or stopped answering."""

    exit_code = 74


class BusError(DeviceError):
    """The servo bus: `port` and, where one is to blame, `motor` (its id) and `packet` (the last bytes seen).

    The message ends with the `remedy`, if there is one; `fact` is what comes before it.
    """

    def __init__(
        self, message: str, *, port: str = "", motor: int | None = None, packet: bytes = b"", remedy: str = ""
    ) -> None:
        super().__init__(f"{message}: {remedy}" if remedy else message)
        self.fact, self.remedy = message, remedy
        self.port = port
        self.motor = motor
        self.packet = packet


class BusTimeout(BusError, TimeoutError):
    """A servo did not answer in time."""


class CameraError(DeviceError):
    """A camera is missing, delivers nothing, or another size than it was asked for."""


class ActuatorFault(DeviceError):
    """The loop stopped by itself; `ticks` holds its recent past, oldest first."""

    def __init__(self, message: str, *, ticks: list[dict[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.ticks = ticks or []


class FollowingFault(ActuatorFault):
    """A joint did not come to where it was sent, and the arm is to stay stopped."""


class AccessError(EdgeRuntimeError):
    """A token, a certificate or a device permission was refused."""

    exit_code = 77


class OutputError(EdgeRuntimeError):
    """A file cannot be created, or a listen address is taken."""

    exit_code = 73


class StreamError(EdgeRuntimeError):
    """The connection to the policy server failed in a way that may pass."""

    exit_code = 69


class ProtocolError(EdgeRuntimeError):
    """The peer spoke wrongly: another version, other names or units, a shape that does not fit."""

    exit_code = 76


class ModelError(EdgeRuntimeError):
    """A bundle or a checkpoint cannot be loaded, or an export failed its own check."""

    exit_code = 65
