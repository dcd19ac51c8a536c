#!/usr/bin/env python3
"""Sums numpy arrays over all ranks through libcomm's C interface, and checks every element of the results.

    prun -n 4 python3 allreduce.py

Needs numpy. LIBCOMM names the shared library if the loader does not find libcomm.so.0 by itself.
"""

import ctypes
import os
import sys

try:
    import numpy as np
except ImportError:
    sys.exit("error: this example needs numpy\n  try: pip install numpy, or apt install python3-numpy")

# numpy's element types and operations, as libcomm.h numbers them (comm_type_t, comm_op_t)
TYPES = {"f8": 1, "f4": 2, "f2": 3, "i1": 5, "u1": 6, "i4": 7, "u4": 8, "i8": 9, "u8": 10}
OPS = {"sum": 1, "prod": 2, "min": 3, "max": 4, "avg": 5}


class CommError(Exception):
    """A call of libcomm failed; the text is libcomm's own sentence."""


class Comm:
    """The communicator of this job, as a context: it is left at the end of the `with` block."""

    def __init__(self):
        self._lib = ctypes.CDLL(os.environ.get("LIBCOMM", "libcomm.so.0"))
        self._lib.comm_last_error.restype = ctypes.c_char_p
        self._comm = ctypes.c_void_p()
        self._call("comm_init", ctypes.byref(self._comm))
        self.rank = self._lib.comm_rank(self._comm)
        self.size = self._lib.comm_size(self._comm)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if error is None:
            self._call("comm_finalize", self._comm)

    def all_reduce(self, send, op="sum", out=None):
        """Returns the reduction of all ranks' `send`; `out` may be an array to use, `send` itself included."""
        send = np.ascontiguousarray(send)
        out = np.empty_like(send) if out is None else out
        if out.dtype != send.dtype or out.shape != send.shape or not out.flags.c_contiguous:
            raise ValueError(f"out must be a contiguous array of {send.shape} {send.dtype}")
        self._call(
            "comm_allreduce",
            self._comm,
            send.ctypes.data_as(ctypes.c_void_p),
            out.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_size_t(send.size),
            TYPES[send.dtype.str[1:]],
            OPS[op],
        )
        return out

    def _call(self, name, *arguments):
        if getattr(self._lib, name)(*arguments) != 0:
            raise CommError(f"{name}: {self._lib.comm_last_error().decode()}")


def check(comm, dtype, count):
    """Sums `count` small whole numbers, which every type holds exactly, and takes their maximum in place."""

    def part_of(rank):
        return ((np.arange(count) + rank) % 5).astype(dtype)

    parts = [part_of(rank) for rank in range(comm.size)]
    total = comm.all_reduce(parts[comm.rank])
    np.testing.assert_array_equal(total, np.sum(parts, axis=0, dtype=dtype))

    largest = part_of(comm.rank)
    comm.all_reduce(largest, "max", out=largest)
    np.testing.assert_array_equal(largest, np.max(parts, axis=0))


def main():
    with Comm() as comm:
        for dtype in TYPES:
            for count in (0, 1, 7, 100_001):
                check(comm, dtype, count)
        if comm.rank == 0:
            print(f"sums and maxima of {len(TYPES)} element types over {comm.size} ranks are exact")


if __name__ == "__main__":
    try:
        main()
    except (AssertionError, CommError, OSError) as error:
        sys.exit(f"error: {error}")
