// What the program that steers frames (steer.bpf.c) is told. C, for the program and for this process.
#pragma once

#include "base/c_integers.h"

#define xdp_most_doors 1024
#define xdp_most_addresses 65536
#define xdp_most_queues 1024

// Where datagrams to a UDP port are let in.
struct XdpDoor {
  uint32_t address;  // in network order; 0: any of the host's
  uint32_t owner;    // of the queues whose sockets take them. What others receive is for the kernel
  uint32_t longest;  // frame that the sockets take; those longer are for the kernel
};

// The Ethernet address at which an interface receives what is sent to this host.
struct XdpStation {
  uint8_t address[6];
  uint16_t zero;
};

// Of an interface all frames of which sockets take: none longer than this, and how many were.
struct XdpLimit {
  uint32_t longest, longest_seen;
  uint64_t dropped;
};
