"""Frames of 1080p: raw they pass, JPEG and a resize on the robot make them small, and that resize is the graph's."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from edge_runtime.cameras.synthetic import SyntheticCamera
from edge_runtime.config import SyntheticCameraConfig
from edge_runtime.wire import codec
from edge_runtime.wire.messages import Camera, Frame, Observation, Pixels
from tests.edge_runtime.link.scripted_server import POLICY

NAMES = ("front", "wrist")


def picture(height: int, width: int) -> Pixels:
    """One with the detail and the noise of a real one."""
    source = SyntheticCamera("c", SyntheticCameraConfig(width, height, 30))
    source.open()
    frame = source.latest()
    assert frame is not None
    return frame.pixels


def observation(height: int, width: int) -> Observation:
    frames = tuple(Frame.raw(name, picture(height, width)) for name in NAMES)
    return Observation(1, 1, 0, True, np.zeros(2, np.float32), frames=frames)


def test_two_raw_frames_of_1080p_arrive_as_they_are() -> None:
    seen = observation(1080, 1920)
    messages = codec.encode_observation(seen)
    sizes = [message.ByteSize() for message in messages]
    assert sum(sizes) > 2 * 1080 * 1920 * 3  # 12.4 MB
    assert max(sizes) < 1.1 * (1 << 20)
    policy = replace(POLICY, cameras=tuple(Camera(name, 1080, 1920) for name in NAMES))
    assembler = codec.ObservationAssembler(policy)
    (complete,) = [done for message in messages if (done := assembler.feed(message)) is not None]
    assert [bytes(frame.data) for frame in complete[0].frames] == [bytes(frame.data) for frame in seen.frames]


def test_resized_on_the_robot_and_compressed_they_are_well_below_a_megabyte() -> None:
    small = observation(480, 640)
    assert sum(message.ByteSize() for message in codec.encode_observation(small, jpeg_quality=90)) < 500_000


def resize_in_a_graph(pixels: Pixels, height: int, width: int) -> Pixels:
    """As an exported graph does it: bilinear, half-pixel centres, no anti-aliasing."""
    shape = numpy_helper.from_array(np.array([1, 3, height, width], np.int64), "shape")
    nodes = [
        helper.make_node("Cast", ["pixels"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["floats"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node(
            "Resize",
            ["planes", "", "", "shape"],
            ["resized"],
            mode="linear",
            coordinate_transformation_mode="half_pixel",
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "resize",
        [helper.make_tensor_value_info("pixels", TensorProto.UINT8, [1, *pixels.shape])],
        [helper.make_tensor_value_info("resized", TensorProto.FLOAT, [1, 3, height, width])],
        [shape],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (resized,) = session.run(None, {"pixels": pixels[None]})
    return np.asarray(resized[0].transpose(1, 2, 0))


def test_resizing_on_the_robot_is_within_two_levels_of_the_graph() -> None:
    for height, width in ((96, 96), (224, 224), (480, 640)):
        pixels = picture(720, 1280)
        ours = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_LINEAR)  # as observer.Sensors does
        assert np.abs(ours.astype(np.float32) - resize_in_a_graph(pixels, height, width)).max() <= 2
