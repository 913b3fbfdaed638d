// What the program that steers frames (steer.bpf.c) is told. C, for the program and for this process.
#pragma once

#include "base/c_integers.h"

#define xdp_most_doors 1024
#define xdp_most_queues 1024

// Where datagrams to a UDP port are let in.
struct XdpDoor {
  uint32_t address;  // in network order; 0: any
  uint32_t owner;    // of the queues whose sockets take them. What others receive is for the kernel
};
