"""What all-reduces take that do not sum in the network: formulas, for links whose two directions carry B bytes a second each.

                     fullest link carries, of M bytes and n workers
  ring               2 (n - 1) / n M: reduce-scatter and all-gather in n - 1 steps each (SwitchML, §3; NetReduce, (1))
  colocated servers  2 (n - 1) / n M: a server at each worker, whose link carries both roles (ATP's NtoN)
  one server         n M at the server (ATP's Nto1)

A packet carries what TCP's do, 1448 of 1514 bytes (bench/compare/draw.py). Each step of a ring, and each of a server's two, costs a hop.
"""
from draw import TCP_SHARE


def bandwidth(rate):
    """Bytes of tensor a second, of `rate` in Gbit/s."""
    return rate * 1e9 / 8 * TCP_SHARE


def ring(workers, rate, hop=0.0):
    return lambda elements: 2 * (workers - 1) * hop + 2 * (workers - 1) / workers * 4 * elements / bandwidth(rate)


def two_level_ring(racks, in_rack, rate, hop=0.0):
    """A ring in each rack that reduces and scatters, rings of a rank of each rack, and the racks' rings again."""
    inside, across = ring(in_rack, rate, hop), ring(racks, rate, hop)
    return lambda elements: inside(elements) + across(elements / in_rack)


def colocated_servers(workers, rate, hop=0.0):
    return lambda elements: 2 * hop + 2 * (workers - 1) / workers * 4 * elements / bandwidth(rate)


def one_server(workers, rate, hop=0.0):
    return lambda elements: 2 * hop + workers * 4 * elements / bandwidth(rate)
