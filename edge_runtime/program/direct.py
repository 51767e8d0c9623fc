"""A robot reaches its cameras, its judge and its server directly: a shell's `http_proxy` is not the way to them.

The one place that knows how to tell so to gRPC, to urllib and to OpenCV's FFmpeg, which all read that variable.
"""

from __future__ import annotations

import os
import urllib.request
from http.client import HTTPResponse
from typing import cast

GRPC = ("grpc.enable_http_proxy", 0)  # an option of each channel

_FFMPEG_OPTIONS = "OPENCV_FFMPEG_CAPTURE_OPTIONS"
_OPENCV_DEFAULT = "rtsp_transport;tcp"  # what OpenCV takes where the variable is not set
_NO_PROXY = "http_proxy;none"  # to FFmpeg a proxy is a text that begins with http://
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def urlopen(request: str | urllib.request.Request, timeout_s: float) -> HTTPResponse:
    """As `urllib.request.urlopen`, with its errors."""
    return cast(HTTPResponse, _opener.open(request, timeout=timeout_s))


def tell_ffmpeg() -> None:
    """OpenCV reads its options each time a URL is opened; those of the user stay. Twice is harmless."""
    options = os.environ.get(_FFMPEG_OPTIONS) or _OPENCV_DEFAULT
    if "http_proxy;" not in options:
        os.environ[_FFMPEG_OPTIONS] = f"{options}|{_NO_PROXY}"
