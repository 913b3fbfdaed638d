// What the program that steers frames (steer.bpf.c) is told. C, for the program and for this process.
#pragma once

#include "base/c_integers.h"
#include "base/xdp_station.h"

#define xdp_most_doors 1024
#define xdp_most_addresses 65536
#define xdp_most_queues 1024

// Where datagrams to a UDP port are let in.
struct XdpDoor {
  uint32_t address;  // in network order; 0: any of the host's
  uint32_t owner;    // of the queues whose sockets take them. What others receive is for the kernel
  uint32_t longest;  // frame that the sockets take; those longer are for the kernel
};

// Of an interface all frames of which sockets take: none longer than this, and how many were.
struct XdpLimit {
  uint32_t longest, longest_seen;
  uint64_t dropped;
};
