"""What ``make run`` runs under its lease: real work, on the GPU where the driver's library offers one, else on the CPU.

Through libcuda itself (its names and integer types are stable since CUDA 4), so that nothing need be installed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import time

_BYTES = 256 * 1024 * 1024


def main(argv: list[str] | None = None) -> int:
    """Exit status 0; 1 where a GPU was leased and could not be worked on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args(argv)
    print(f"leased: {os.environ.get('RC_DEVICE', 'nothing')}", flush=True)
    end = time.monotonic() + options.seconds
    if os.environ.get("CUDA_VISIBLE_DEVICES"):
        try:
            passes = _on_gpu(end)
        except (OSError, RuntimeError) as error:
            print(f"the GPU could not be worked on: {error}", file=sys.stderr)
            return 1
        print(f"wrote {passes * _BYTES / 1e9:.0f} GB of GPU memory in {passes} passes")
        return 0
    rounds = 0
    while time.monotonic() < end:
        sum(i * i for i in range(20_000))
        rounds += 1
    print(f"added {rounds * 20_000 / 1e6:.1f} million squares on the CPU")
    return 0


def _on_gpu(end: float) -> int:
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        status = getattr(cuda, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} answered {status}")

    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(_BYTES))
    passes = 0
    while time.monotonic() < end:
        for _ in range(64):
            call("cuMemsetD32_v2", memory, passes & 0xFF, ctypes.c_size_t(_BYTES // 4))
            passes += 1
        call("cuCtxSynchronize")
    call("cuMemFree_v2", memory)
    call("cuCtxDestroy_v2", context)
    return passes


if __name__ == "__main__":
    sys.exit(main())
