// A switch with SwitchML's chip profile inside the kernel (docs/protocol-switchml-chip.md, docs/data-planes.md): packets of
// jobs are summed and answered where a network interface's driver has received them. Everything else goes on to the kernel,
// and so do packets of the profile to other hosts, which this one only forwards, and to other addresses of it.
//
// Its rule is protocol/switchml/chip_rule.h; what it does with a packet is what switchml::ChipSwitch does, to the counter, and
// tests/property/xdp_chip_test.cc compares the two. Both passes of a packet are one here, as they are there.
//
// All packets of a lane are processed on one processor: what arrives at another is handed over there (`processors`). So no
// slot and no counter of a job needs a lock or an atomic instruction. Programs are not interrupted by others on their processor.

#include <linux/bpf.h>
// The kernel's headers first.
#include <bpf/bpf_helpers.h>

#include "dataplane/xdp/maps.h"

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, 65536);
  __type(key, struct XdpLaneOfJob);
  __type(value, struct XdpJob);
} jobs SEC(".maps");

struct few_slots {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(map_flags, BPF_F_INNER_MAP | BPF_F_MMAPABLE);
  __uint(max_entries, 1);
  __uint(key_size, sizeof(__u32));
  __uint(value_size, sizeof(struct XdpFewSlot));
};
struct many_slots {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(map_flags, BPF_F_INNER_MAP | BPF_F_MMAPABLE);
  __uint(max_entries, 1);
  __uint(key_size, sizeof(__u32));
  __uint(value_size, sizeof(struct XdpManySlot));
};
struct {
  __uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, 65536);
  __type(key, struct XdpLaneOfJob);
  __array(values, struct few_slots);
} slots_of_64 SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, 65536);
  __type(key, struct XdpLaneOfJob);
  __array(values, struct many_slots);
} slots_of_256 SEC(".maps");

// Where a job's results go: an entry for each interface, whose program writes the headers of what leaves there.
struct audience {
  __uint(type, BPF_MAP_TYPE_DEVMAP);
  __uint(max_entries, 1);
  __uint(key_size, sizeof(__u32));
  __uint(value_size, sizeof(struct bpf_devmap_val));
};
struct {
  __uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, 65536);
  __type(key, struct XdpLaneOfJob);
  __array(values, struct audience);
} audiences SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, 1 << 20);
  __type(key, struct XdpPortOfJob);
  __type(value, struct XdpWay);
} ways SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_CPUMAP);
  __uint(max_entries, 1);  // the loader says how many
  __type(key, __u32);
  __type(value, struct bpf_cpumap_val);
} processors SEC(".maps");

// By port.
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, xdp_max_lanes);
  __type(key, __u32);
  __type(value, __u32);  // its number
} lanes SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, xdp_max_lanes);
  __type(key, __u32);
  __type(value, struct XdpStrangers);
} strangers SEC(".maps");

// This host: the Ethernet addresses of its interfaces, by index, and the IPv4 addresses at which its lanes are.
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, 65536);
  __type(key, __u32);
  __type(value, struct XdpStation);
} stations SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, 65536);
  __type(key, struct XdpAddress);
  __type(value, __u32);  // without a meaning
} addresses SEC(".maps");

// A datagram in place.
struct Packet {
  struct XdpFrame* frame;
  struct ChipHeader* header;
  uint64_t* values;
  uint32_t bytes;  // of the datagram
};

static __always_inline uint64_t both(uint64_t network) {  // two int32 of the payload, in the host's order; and back
  return chip_host64(network);
}

// Two sums at once: a carry out of the lower one is not the upper one's.
static __always_inline uint64_t add_both(uint64_t one, uint64_t other) {
  const uint64_t low = 0x7fffffff7fffffffULL;
  return ((one & low) + (other & low)) ^ ((one ^ other) & ~low);
}

// All of a datagram's bytes are in the frame, which is IPv4 without options and no fragment. False: it is the kernel's.
static __always_inline bool find_datagram(struct xdp_md* context, struct Packet* packet) {
  void* const begin = (void*)(long)context->data;
  void* const end = (void*)(long)context->data_end;
  struct XdpFrame* const frame = begin;
  if (begin + xdp_frame_bytes + 1 > end) return false;
  if (frame->ethernet.type != chip_host16(0x0800) || frame->ip.version != 0x45 || frame->ip.protocol != 17) return false;
  if ((frame->ip.fragment & chip_host16(0x3fff)) != 0) return false;
  const uint32_t length = chip_host16(frame->udp.length);
  if (length < 8 || chip_host16(frame->ip.length) != length + 20) return false;
  packet->frame = frame;
  packet->header = begin + xdp_frame_bytes;
  packet->values = begin + xdp_frame_bytes + chip_header_bytes;
  packet->bytes = length - 8;
  return true;
}

static __always_inline bool is_station(const uint8_t* address, const uint8_t* known) {
  const uint16_t* const words = (const uint16_t*)address;
  const uint16_t* const others = (const uint16_t*)known;
  return words[0] == others[0] && words[1] == others[1] && words[2] == others[2];
}
static __always_inline bool is_address(const uint16_t* address, const uint16_t* known) {
  return address[0] == known[0] && address[1] == known[1];
}

static __always_inline bool is_to_this_host(const struct xdp_md* context, const struct XdpFrame* frame) {
  const uint32_t interface = context->ingress_ifindex;
  const struct XdpStation* const station = bpf_map_lookup_elem(&stations, &interface);
  if (station == 0 || !is_station(frame->ethernet.destination, station->address)) return false;
  const struct XdpAddress address = {{frame->ip.destination[0], frame->ip.destination[1]}};
  return bpf_map_lookup_elem(&addresses, &address) != 0;
}
// The same of a known neighbour's packets: they come to where what is sent to it leaves, as a rule, and then the way says so,
// which is read anyway.
static __always_inline bool is_to_us(const struct xdp_md* context, const struct XdpFrame* frame, const struct XdpFrame* way) {
  if (is_station(frame->ethernet.destination, way->ethernet.source) && is_address(frame->ip.destination, way->ip.source))
    return true;
  return is_to_this_host(context, frame);
}

// Null: the packet is another one's.
static __always_inline struct XdpStrangers* strangers_at(const struct xdp_md* context, const struct XdpFrame* frame) {
  const uint32_t port = frame->udp.destination;
  const uint32_t* const number = bpf_map_lookup_elem(&lanes, &port);
  if (number == 0 || !is_to_this_host(context, frame)) return 0;
  return bpf_map_lookup_elem(&strangers, number);
}

static __always_inline void write_frame(struct Packet* packet, const struct XdpWay* way) {
  *packet->frame = way->frame;
}

static __always_inline int send(struct Packet* packet, const struct XdpWay* way) {
  write_frame(packet, way);
  return bpf_redirect(way->interface, 0);
}

// A result, to all members: on each of their interfaces leave() writes the headers, for which it needs the lane.
static __always_inline int send_to_all(struct Packet* packet, struct XdpJob* job, const struct XdpLaneOfJob* lane) {
  void* const audience = bpf_map_lookup_elem(&audiences, lane);
  if (audience == 0) return XDP_ABORTED;
  job->counter[xdp_results_sent] += job->members;
  packet->frame->udp.source = (uint16_t)lane->port;
  return bpf_redirect_map(audience, 0, BPF_F_BROADCAST);
}

// `words`: of the payload, and of `sums`; known to the compiler.
static __always_inline void store(uint64_t* sums, const uint64_t* values, int words) {
  for (int i = 0; i < words; ++i) sums[i] = both(values[i]);
}
static __always_inline void add(uint64_t* sums, const uint64_t* values, int words) {
  for (int i = 0; i < words; ++i) sums[i] = add_both(sums[i], both(values[i]));
}
static __always_inline void add_and_read(uint64_t* sums, uint64_t* values, int words) {
  for (int i = 0; i < words; ++i) {
    const uint64_t sum = add_both(sums[i], both(values[i]));
    sums[i] = sum;
    values[i] = both(sum);
  }
}
static __always_inline void read(const uint64_t* sums, uint64_t* values, int words) {
  for (int i = 0; i < words; ++i) values[i] = both(sums[i]);
}

static __always_inline int drop(struct XdpJob* job, enum XdpCounter as) {
  ++job->counter[as];
  return XDP_DROP;
}

// The sum and its exponents are in the packet.
static __always_inline int send_up(struct Packet* packet, struct XdpJob* job, bool repeats) {
  packet->header->member = (uint8_t)job->number;
  ++job->counter[repeats ? xdp_repeats_passed_up : xdp_chunks];
  ++job->counter[xdp_sums_sent];
  if (repeats) ++job->counter[xdp_sums_repeated];
  return send(packet, &job->neighbour[xdp_parent]);
}

static __always_inline int on_contribution(struct Packet* packet, struct XdpJob* job, const struct XdpLaneOfJob* lane,
                                           const struct XdpWay* sender, struct XdpSlotHead* slot, uint64_t* sums, int words) {
  struct ChipHeader* const header = packet->header;
  const uint32_t a = 2 * chip_host32(header->round), bit = 1U << header->member;
  const uint32_t before = chip_enter(&slot->gate, a, bit);
  const bool adds = before != 0 && !chip_seen(before, bit);
  bool answers = false, goes_up = false;
  if (before == 0) {
    answers = chip_is_done(slot->done, a);
    if (!answers) return drop(job, chip_is_early(&slot->gate, a) ? xdp_dropped_early : xdp_dropped_old);
  } else if (chip_is_complete(before, bit, job->everyone)) {
    answers = job->root != 0;
    goes_up = !answers && chip_goes_up(before, bit);
  }
  const bool reads = answers || goes_up;
  if (!adds && !reads) return drop(job, xdp_repeats_silent);

  if (!adds) {
    read(sums, packet->values, words);
  } else if (before == chip_accepted) {  // the round's first: if it is the last one too, it has the sum already
    store(sums, packet->values, words);
    for (int i = 0; i < 2; ++i) slot->exponents[i] = chip_host16(header->exponents[i]);
    slot->operation = header->operation;
    slot->chunk = header->chunk;
  } else {
    if (reads) {
      add_and_read(sums, packet->values, words);
    } else {
      add(sums, packet->values, words);
    }
    for (int i = 0; i < 2; ++i) slot->exponents[i] = chip_larger(slot->exponents[i], chip_host16(header->exponents[i]));
  }
  if (adds) ++job->counter[xdp_contributions];
  if (!reads) return XDP_DROP;

  for (int i = 0; i < 2; ++i) header->exponents[i] = chip_host16(slot->exponents[i]);
  if (goes_up) return send_up(packet, job, !adds);
  header->type = chip_result;
  if (job->root != 0 && chip_leave(&slot->gate, a)) {
    chip_finish(&slot->done, a);
    ++job->counter[xdp_chunks];
    return send_to_all(packet, job, lane);
  }
  ++job->counter[xdp_repeats_answered];
  ++job->counter[xdp_results_sent];
  return send(packet, sender);
}

// From the parent.
static __always_inline int on_result(struct Packet* packet, struct XdpJob* job, const struct XdpLaneOfJob* lane,
                                     struct XdpSlotHead* slot, uint64_t* sums, int words) {
  const uint32_t a = 2 * chip_host32(packet->header->round);
  if (!chip_leave(&slot->gate, a)) return drop(job, xdp_dropped_stale);
  chip_finish(&slot->done, a);
  ++job->counter[xdp_results_taken];
  store(sums, packet->values, words);
  for (int i = 0; i < 2; ++i) slot->exponents[i] = chip_host16(packet->header->exponents[i]);
  return send_to_all(packet, job, lane);
}

// From this neighbour, to where it sends.
static __always_inline bool is_from(const struct XdpFrame* frame, const struct XdpFrame* way) {
  return is_address(frame->ip.source, way->ip.destination) && is_address(frame->ip.destination, way->ip.source) &&
         frame->udp.source == way->udp.destination;
}

// Several of the profile's packets in one datagram: the kernel merges them, or a sender's were never cut, where this runs
// in generic mode. A program cannot cut them.
static __always_inline bool is_train(uint32_t bytes) {
  const uint32_t few = chip_packet_bytes(chip_few_elements), many = chip_packet_bytes(chip_many_elements);
  return bytes >= 2 * few && (bytes % few == 0 || bytes % many == 0);
}
static __always_inline void count_train(const struct Packet* packet, uint32_t port) {
  const struct XdpLaneOfJob lane = {.job_epoch = packet->header->job_epoch, .port = port};
  struct XdpJob* const job = bpf_map_lookup_elem(&jobs, &lane);
  if (job != 0) __sync_fetch_and_add(&job->counter[xdp_dropped_trains], 1);  // on any processor
}

// `here`: all packets of the lane come to this processor.
static __always_inline int serve(struct xdp_md* context, bool here) {
  struct Packet packet;
  if (!find_datagram(context, &packet) || packet.header->format != chip_format) return XDP_PASS;
  const void* const begin = packet.frame;
  const void* const end = (void*)(long)context->data_end;
  const uint32_t port = packet.frame->udp.destination;
  enum ChipFault fault = chip_truncated;
  if (packet.bytes >= chip_header_bytes) {
    if (begin + xdp_frame_bytes + chip_header_bytes > end) return XDP_PASS;
    fault = chip_fault(packet.header, packet.bytes);
  }
  if (fault != chip_no_fault) {
    struct XdpStrangers* const counters = strangers_at(context, packet.frame);
    if (counters == 0) return XDP_PASS;
    ++counters->malformed[fault & 7];
    if (fault == chip_no_length && is_train(packet.bytes)) count_train(&packet, port);
    return XDP_DROP;
  }
  const bool many = packet.bytes == chip_header_bytes + 4 * chip_many_elements;
  if (begin + xdp_frame_bytes + chip_header_bytes + 4 * chip_few_elements > end) return XDP_PASS;
  if (many && begin + xdp_frame_bytes + chip_header_bytes + 4 * chip_many_elements > end) return XDP_PASS;

  const struct ChipHeader* const header = packet.header;
  const struct XdpLaneOfJob lane = {.job_epoch = header->job_epoch, .port = port};
  struct XdpJob* const job = bpf_map_lookup_elem(&jobs, &lane);
  const bool is_result = header->type == chip_result;
  if (job == 0 || (is_result && job->root != 0)) {
    struct XdpStrangers* const counters = strangers_at(context, packet.frame);
    if (counters == 0) return XDP_PASS;
    ++*(job == 0 ? &counters->unknown_job : &counters->unexpected_type);
    return XDP_DROP;
  }
  const uint32_t member = header->member;
  if (member >= chip_max_members) return XDP_DROP;  // chip_fault() says so, but not to the verifier
  const struct XdpWay* const sender = &job->neighbour[is_result ? xdp_parent : member];  // all zero: there is none
  if (!is_to_us(context, packet.frame, &sender->frame)) return XDP_PASS;
  if (!here && job->cpu != bpf_get_smp_processor_id()) return (int)bpf_redirect_map(&processors, job->cpu, 0);

  ++job->counter[xdp_packets];
  job->counter[xdp_bytes] += packet.bytes;
  if (!is_result && member >= job->members) return drop(job, xdp_dropped_rank);
  if (!is_from(packet.frame, &sender->frame)) return drop(job, xdp_dropped_source);
  if (chip_host16(header->slot) >= job->slots) return drop(job, xdp_dropped_slot);
  if (many != (job->elements == chip_many_elements)) return drop(job, xdp_dropped_shape);

  const uint32_t number = chip_host16(header->slot) * 2 + header->version;
  if (many) {
    void* const slots = bpf_map_lookup_elem(&slots_of_256, &lane);
    struct XdpManySlot* const slot = slots == 0 ? 0 : bpf_map_lookup_elem(slots, &number);
    if (slot == 0) return XDP_ABORTED;
    if (is_result) return on_result(&packet, job, &lane, &slot->head, slot->sums, chip_many_elements / 2);
    return on_contribution(&packet, job, &lane, sender, &slot->head, slot->sums, chip_many_elements / 2);
  }
  void* const slots = bpf_map_lookup_elem(&slots_of_64, &lane);
  struct XdpFewSlot* const slot = slots == 0 ? 0 : bpf_map_lookup_elem(slots, &number);
  if (slot == 0) return XDP_ABORTED;
  if (is_result) return on_result(&packet, job, &lane, &slot->head, slot->sums, chip_few_elements / 2);
  return on_contribution(&packet, job, &lane, sender, &slot->head, slot->sums, chip_few_elements / 2);
}

// On an interface.
SEC("xdp.frags") int arrive(struct xdp_md* context) {
  return serve(context, false);
}

// On the processor of the packet's lane, from another one.
SEC("xdp.frags/cpumap") int handed_over(struct xdp_md* context) {
  return serve(context, true);
}

// One copy of a result, on one of the interfaces where it leaves.
SEC("xdp.frags/devmap") int leave(struct xdp_md* context) {
  struct Packet packet = {.frame = (void*)(long)context->data};
  const struct ChipHeader* const header = (void*)(long)context->data + xdp_frame_bytes;
  if ((void*)(header + 1) > (void*)(long)context->data_end) return XDP_DROP;
  const struct XdpPortOfJob to = {
      .job_epoch = header->job_epoch, .port = packet.frame->udp.source, .interface = context->egress_ifindex};
  const struct XdpWay* const way = bpf_map_lookup_elem(&ways, &to);
  if (way == 0) return XDP_DROP;
  write_frame(&packet, way);
  return XDP_PASS;
}

// Run by the loader alone. A job's value is changed in place, since a new one would undo what is counted meanwhile. A packet
// that is sent at the same time may have a part of each way: it is lost, and repeated.
SEC("xdp") int set_way(struct xdp_md* context) {
  const struct XdpNewWay* const change = (void*)(long)context->data;
  if ((void*)(change + 1) > (void*)(long)context->data_end) return XDP_ABORTED;
  const struct XdpLaneOfJob lane = change->job;
  struct XdpJob* const job = bpf_map_lookup_elem(&jobs, &lane);
  if (job == 0) return XDP_DROP;
  const uint32_t neighbour = change->neighbour;
  if (neighbour < xdp_neighbours) job->neighbour[neighbour] = change->way;
  return XDP_DROP;
}

char license_of_program[] SEC("license") = "Apache-2.0";
