"""One rank of the smallest job from Python without PyTorch: hello_ctypes.py ADDRESS RANK RANKS, once for each rank.

It needs libnetsum.so alone, which ctypes finds by LD_LIBRARY_PATH or as the system's.
"""
import array
import ctypes
import sys

netsum = ctypes.CDLL("libnetsum.so.1")
netsum.netsum_last_error.restype = ctypes.c_char_p
netsum.netsum_options_create.restype = ctypes.c_void_p
FLOAT32, SUM = 0, 0  # netsum_dtype, netsum_op


def check(status):
    if status != 0:
        raise SystemExit(f"hello_ctypes: {netsum.netsum_last_error().decode()}")


def main():
    address, rank, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    options, communicator = ctypes.c_void_p(netsum.netsum_options_create()), ctypes.c_void_p()
    check(netsum.netsum_options_set(options, b"NETSUM_SWITCH", address.encode()))
    check(netsum.netsum_connect(options, b"hello-ctypes", ctypes.c_uint32(rank), ctypes.c_uint32(ranks), ctypes.byref(communicator)))
    netsum.netsum_options_destroy(options)

    gradients = array.array("f", [rank + 1] * 100_000)
    place, length = ctypes.c_void_p(gradients.buffer_info()[0]), ctypes.c_size_t(len(gradients))
    check(netsum.netsum_all_reduce(communicator, place, place, length, FLOAT32, SUM, None))
    print(f"rank {rank} of {ranks}: every element is {gradients[-1]:g}")
    netsum.netsum_destroy(communicator)


if __name__ == "__main__":
    main()
