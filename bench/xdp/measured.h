// What xdp_bench and its program in the kernel have in common. In C.
#pragma once

#include "dataplane/xdp/maps.h"

enum { measured_members = 4, measured_slots = 64 };

// What a member's contributions begin with.
struct MeasuredFrame {
  uint8_t headers[xdp_frame_bytes];
  struct ChipHeader header;
} __attribute__((packed));
