"""What the documents say of sums (docs/numerics.md), by numpy."""
import math

import numpy

INT32, FLOAT16, BFLOAT16, FLOAT32, FLOAT64, INT64, INT16, INT8, UINT8, BLOCK8, BLOCK4 = range(11)
SUM, AVG, MIN, MAX, PRODUCT, AND, OR, XOR = range(8)
BYTES = (4, 2, 2, 4, 8, 8, 2, 1, 1, 1, 1)
STORED = tuple(numpy.dtype(d) for d in ("<i4", "<f2", "<u2", "<f4", "<f8", "<i8", "<i2", "i1", "u1", "u1", "u1"))
FLOATS = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64, BLOCK8, BLOCK4)
BLOCKS = (BLOCK8, BLOCK4)
MASKS = 0xffff  # in a plane's place
IN_PLACE = {SUM: numpy.add, MIN: numpy.minimum, MAX: numpy.maximum, PRODUCT: numpy.multiply, AND: numpy.bitwise_and,
            OR: numpy.bitwise_or, XOR: numpy.bitwise_xor}


def widened(bits):
    """bfloat16 as float32."""
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32)


def narrowed(values):
    """float32 to bfloat16, to nearest even."""
    bits = values.view(numpy.uint32)
    rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16
    return numpy.where(numpy.isnan(values), 0x7fc0, rounded).astype(numpy.uint16)


def in_order(values, kind):
    """Added one after the other; what leaves float32 on the way is formed in double, in the same order, and rounded."""
    total = values[0].astype(kind)
    for value in values[1:]:
        total = total + value.astype(kind)
    return total


def ordered_float32(values, divisor):
    total = in_order(values, numpy.float32)
    wide = in_order(values, numpy.float64)
    if divisor > 1:
        return numpy.where(numpy.isfinite(total), total / numpy.float32(divisor), (wide / divisor).astype(numpy.float32))
    return numpy.where(numpy.isfinite(total), total, wide.astype(numpy.float32))


def elements_of_sum(dtype, elements):
    """Of each contribution so many. Blocks of 4 bits, of 33 bytes, have sums of 8, of 65."""
    return 2 * elements + -elements // 33 if dtype == BLOCK4 else elements


def of_blocks(values, bits):
    """Blocks of 8 or 4 bits: an exponent and 64 values, or fewer in the last; added in float32 at a 2^13th of their size, and rounded to 8."""
    wide = 8 * bits
    total = bytearray()
    for at in range(0, len(values[0]), wide + 1):
        sums = numpy.float32(0)
        for value in values:
            block = value[at + 1:at + 1 + wide].view(numpy.int8)
            if bits == 4:
                block = numpy.stack((block << 4, block), 1).ravel() >> 4
            steps = block.astype(numpy.float32)
            steps[steps == -2 ** (bits - 1)] = numpy.nan
            sums = sums + steps * numpy.float32(2.0 ** (min(max(int(value[at]), 20), 254) - 125 - bits - 13))
        total += rounded_block(sums)
    return numpy.frombuffer(bytes(total), numpy.uint8)


def rounded_block(sums):
    """Sums that are a 2^13th of their size, in float32, to 8 bits."""
    sums[~(abs(sums) < 2.0 ** 115)] = numpy.nan
    largest = numpy.max(abs(sums[~numpy.isnan(sums)]), initial=0)
    exponent = max(int(largest.view(numpy.uint32) >> 23) if largest else 0, 7)
    rounded = numpy.clip(numpy.rint(sums.astype(numpy.float64) * 2.0 ** (133 - exponent)), -127, 127)
    return bytes([exponent + 13]) + numpy.where(numpy.isnan(sums), -128, rounded).astype(numpy.int8).tobytes()


def short(dtype, operation):
    """Whether switches in a tree add such floats exactly."""
    return (dtype in (FLOAT16, BFLOAT16) and operation != PRODUCT) or dtype in BLOCKS


LEAST = {FLOAT16: -24, BFLOAT16: -133, BLOCK8: -113, BLOCK4: -109}  # all values are multiples of this power of two


class Exact:
    """Sums of short floats, in units of the type's least value; and what these do not say."""

    def __init__(self, integers, up, down, minus):
        self.integers, self.up, self.down, self.minus = integers, up, down, minus

    def __add__(self, other):
        return Exact(self.integers + other.integers, self.up | other.up, self.down | other.down, self.minus & other.minus)

    def __eq__(self, other):
        return len(self.integers) == len(other.integers) and all(
            (a == b).all() for a, b in zip(vars(self).values(), vars(other).values()))

    def doubles(self, dtype):
        # Python rounds integers to the nearest double.
        sums = numpy.array([math.ldexp(float(integer), LEAST[dtype]) for integer in self.integers])
        sums[self.minus & (sums == 0)] = -0.0
        sums[self.up] = numpy.inf
        sums[self.down] = -numpy.inf
        sums[self.up & self.down] = numpy.nan
        return sums


def values_in(dtype, elements):
    if dtype not in BLOCKS:
        return elements
    return elements + -elements // 65 if dtype == BLOCK8 else 2 * (elements + -elements // 33)


def exact(payload, dtype):
    """One rank's values."""
    if dtype not in BLOCKS:
        fraction = 10 if dtype == FLOAT16 else 7
        bits = payload.view(numpy.uint16).astype(numpy.int64)
        magnitude, infinity = bits & 0x7fff, 0x7fff >> fraction << fraction
        places = numpy.maximum(magnitude >> fraction, 1) - 1
        integers = numpy.where(magnitude >= infinity, 0, magnitude - (places << fraction))
        negative = bits >= 0x8000
        shifted = numpy.where(negative, -integers, integers).astype(object) << places.astype(object)
        nan = magnitude > infinity
        return Exact(shifted, nan | ((magnitude == infinity) & ~negative), nan | ((magnitude == infinity) & negative), bits == 0x8000)
    bits = 4 if dtype == BLOCK4 else 8
    integers, wide = [], 8 * bits
    for at in range(0, len(payload), wide + 1):
        block = payload[at + 1:at + 1 + wide].view(numpy.int8)
        if bits == 4:
            block = numpy.stack((block << 4, block), 1).ravel() >> 4
        integers += [int(each) << min(max(int(payload[at]), 20), 254) - 20 if each != -2 ** (bits - 1) else None for each in block]
    nan = numpy.array([each is None for each in integers], bool)
    return Exact(numpy.array([each or 0 for each in integers], object), nan, nan, numpy.zeros(len(nan), bool))


def of_parts(parts, dtype, values):
    """A sum from its planes and masks, (place, bytes) each."""
    sums, masks = numpy.zeros(values, object), numpy.zeros((3, values), bool)
    for place, data in parts:
        if place == MASKS:
            rows = numpy.frombuffer(data, numpy.uint8).reshape(3, -1)
            masks = numpy.unpackbits(rows, axis=1, bitorder="little")[:, :values].astype(bool)
        else:
            digits = numpy.frombuffer(data, "i1" if dtype in BLOCKS else "<i2").astype(object)
            sums = sums + (digits << place)
    return Exact(sums, *masks)


def of_exact(total, dtype, operation, ranks):
    """The result of a tree."""
    with numpy.errstate(all="ignore"):
        sums = total.doubles(dtype)
        if dtype in BLOCKS:
            floats = (sums * 2.0 ** -13).astype(numpy.float32)
            return numpy.frombuffer(b"".join(rounded_block(floats[at:at + 64]) for at in range(0, len(floats), 64)), numpy.uint8)
        sums = sums / (ranks if operation == AVG else 1)
        if dtype == FLOAT16:
            return sums.astype(STORED[FLOAT16])
        # To float32 and odd, so that rounding again is rounding once.
        floats = sums.astype(numpy.float32)
        back = floats.astype(numpy.float64)
        bits = floats.view(numpy.uint32)
        odd = (bits - (abs(back) > abs(sums)).astype(numpy.uint32)) | 1
        return narrowed(numpy.where((back == sums) | numpy.isnan(sums), bits, odd).view(numpy.float32))


def of_ranks(values, dtype, operation, ranks):
    """Floats of all ranks, in ascending order of ranks, as the type has them in packets."""
    with numpy.errstate(all="ignore"):
        if dtype in BLOCKS:
            return of_blocks(values, 4 if dtype == BLOCK4 else 8)
        if operation == PRODUCT:
            wide = [widened(v) if dtype == BFLOAT16 else v for v in values]
            total = wide[0].astype(numpy.float64)
            for value in wide[1:]:
                total = total * value.astype(numpy.float64)
            if dtype == BFLOAT16:
                return narrowed(total.astype(numpy.float32))
            return (total.astype(numpy.float32) if dtype == FLOAT16 else total).astype(STORED[dtype])
        divisor = ranks if operation == AVG else 1
        if dtype == BFLOAT16:
            return narrowed(ordered_float32([widened(v) for v in values], divisor))
        return (in_order(values, numpy.float64) / divisor).astype(STORED[dtype])


def difference(expected, found, dtype):
    """The first element that differs, or None; any NaN is like another."""
    if expected.tobytes() == found.tobytes():
        return None
    a, b = (widened(v) if dtype == BFLOAT16 else v for v in (expected, found))
    same = expected.view(f"u{BYTES[dtype]}") == found.view(f"u{BYTES[dtype]}")
    if dtype in FLOATS:
        same |= numpy.isnan(a) & numpy.isnan(b)
    wrong = numpy.flatnonzero(~same)
    return None if len(wrong) == 0 else (int(wrong[0]), b[wrong[0]], a[wrong[0]])
