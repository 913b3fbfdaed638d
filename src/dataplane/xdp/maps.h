// What the program in the kernel (chip.bpf.c) and its loader have in common: the values of their maps. In C.
//
// Ports and addresses are in network order, all other integers in the host's.
#pragma once

#include "base/c_integers.h"
#include "base/xdp_station.h"
#include "protocol/switchml/chip_rule.h"
#include "wire/switchml_chip_layout.h"

// A job on a lane, which is a UDP port.
struct XdpLaneOfJob {
  uint64_t job_epoch;
  uint32_t port;
  uint32_t zero;
};

// One of its neighbours' interfaces.
struct XdpPortOfJob {
  uint64_t job_epoch;
  uint32_t port;
  uint32_t interface;
};

struct XdpAddress {  // IPv4
  uint16_t halves[2];
};

// To a neighbour: the headers of all packets there, ready to be copied, since all packets of a job have one length.
struct XdpWay {
  struct XdpFrame {
    struct {
      uint8_t destination[6], source[6];
      uint16_t type;
    } ethernet;
    struct {
      uint8_t version, service;
      uint16_t length, id, fragment;
      uint8_t time_to_live, protocol;
      uint16_t checksum;
      uint16_t source[2], destination[2];  // 32 bits each, which are not aligned to 4 bytes in a frame
    } ip;
    struct {
      uint16_t source, destination, length, checksum;
    } udp;
  } frame;
  uint16_t zero;
  uint32_t interface;
};
enum { xdp_frame_bytes = 42 };  // of headers

// switchml::JobCounters' and SwitchCounters' fields that a chip has.
enum XdpCounter {
  xdp_packets,
  xdp_bytes,
  xdp_contributions,
  xdp_chunks,
  xdp_results_sent,
  xdp_repeats_answered,
  xdp_repeats_silent,
  xdp_repeats_passed_up,
  xdp_sums_sent,
  xdp_sums_repeated,
  xdp_results_taken,
  xdp_dropped_stale,
  xdp_dropped_old,
  xdp_dropped_early,
  xdp_dropped_rank,
  xdp_dropped_source,
  xdp_dropped_slot,
  xdp_dropped_shape,
  xdp_dropped_trains,
  xdp_counters,  // how many
};

enum { xdp_parent = chip_max_members, xdp_neighbours };  // of a job; its members have their numbers

// For set_way(): the loader's word that a neighbour of a job has another way.
struct XdpNewWay {
  struct XdpLaneOfJob job;
  uint32_t neighbour;  // which
  uint32_t zero;
  struct XdpWay way;
};
struct XdpJob {
  uint32_t cpu;  // all of the lane's packets are processed there: so nothing here and in the slots needs a lock
  uint32_t everyone;
  uint32_t members, root;  // root: 1, or 0 below another switch
  uint32_t number;         // of this switch among the parent's members
  uint32_t elements, slots, zero;
  struct XdpWay neighbour[xdp_neighbours];
  uint64_t counter[xdp_counters];
};

// One version of one slot. The sums are in the host's order; two are one word.
struct XdpSlotHead {
  struct ChipGate gate;
  uint32_t done;
  uint16_t exponents[2];
  uint64_t operation;  // of the round's first packet, for reports; in network order, as is the chunk
  uint32_t chunk;
  uint32_t zero[9];  // to a cache line
};
struct XdpFewSlot {
  struct XdpSlotHead head;
  uint64_t sums[chip_few_elements / 2];
};
struct XdpManySlot {
  struct XdpSlotHead head;
  uint64_t sums[chip_many_elements / 2];
};

enum { xdp_max_lanes = 64 };

// Counters of a lane's packets that belong to no job, on each processor.
struct XdpStrangers {
  uint64_t malformed[8];  // by ChipFault
  uint64_t unknown_job, unexpected_type;
};
