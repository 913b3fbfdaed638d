"""CRC32C and CRC32 by numpy: a CRC is linear, so each byte's part of it is a table's entry of its place from the end."""
import numpy

BLOCK = 4096  # bytes that one gather takes


class Crc:
    def __init__(self, polynomial):  # with its bits turned around
        first = numpy.arange(256, dtype=numpy.uint32)
        for _ in range(8):
            first = first >> 1 ^ (first & 1) * numpy.uint32(polynomial)
        table = numpy.empty((BLOCK, 256), numpy.uint32)
        table[BLOCK - 1] = first
        for place in range(BLOCK - 2, -1, -1):
            table[place] = table[place + 1] >> 8 ^ first[table[place + 1] & 255]
        self.table = table.reshape(-1)
        self.rows = numpy.arange(BLOCK, dtype=numpy.intp) * 256

    def __call__(self, data, before=0):
        state = before ^ 0xffffffff
        for at in range(0, len(data), BLOCK):
            block = bytearray(data[at:at + BLOCK])
            length = len(block)
            carried = min(length, 4)  # of a state only as many bytes meet the data; the rest moves down
            for i in range(carried):
                block[i] ^= state >> 8 * i & 255
            entries = self.rows[BLOCK - length:] + numpy.frombuffer(block, numpy.uint8)
            state = int(numpy.bitwise_xor.reduce(self.table[entries])) ^ (state >> 8 * carried)
        return state ^ 0xffffffff


crc32c = Crc(0x82f63b78)
