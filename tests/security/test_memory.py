"""What robots leave behind: the memory of their pictures goes back to the system when it is freed."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

# numpy takes pictures from malloc. Each thread has an arena of its own; `hblks` counts what is mapped by itself.
SCRIPT = """
import ctypes, threading
from policy_server import cli

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
cli._give_pictures_back()

def robot():
    libc.free(libc.malloc(30 << 20))
    before = libc.mallinfo2().hblks
    picture = libc.malloc(20 << 20)
    print(libc.mallinfo2().hblks - before)
    libc.free(picture)

thread = threading.Thread(target=robot)
thread.start()
thread.join()
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33")
def test_a_picture_is_never_taken_from_an_arena() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "1\n"
