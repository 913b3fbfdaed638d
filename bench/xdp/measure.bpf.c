// The switch in the kernel, and contributions that it makes by itself: each run has the next one in place of the frame that it
// was given. Members of one job, in the order in which a network brings their windows.

#include "dataplane/xdp/chip.bpf.c"
// The product's whole program first.
#include "xdp/measured.h"

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, measured_members);
  __type(key, __u32);
  __type(value, struct MeasuredFrame);
} frames SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, __u64);
} contributions SEC(".maps");

SEC("xdp.frags") int contribute(struct xdp_md* context) {
  const uint32_t zero = 0;
  uint64_t* const count = bpf_map_lookup_elem(&contributions, &zero);
  struct MeasuredFrame* const to = (void*)(long)context->data;
  if (count == 0 || (void*)(to + 1) > (void*)(long)context->data_end) return XDP_ABORTED;
  const uint64_t turn = (*count)++;
  const uint32_t member = turn / measured_slots % measured_members;
  const struct MeasuredFrame* const from = bpf_map_lookup_elem(&frames, &member);
  if (from == 0) return XDP_ABORTED;
  const uint64_t phase = turn / (measured_slots * measured_members);
  *to = *from;
  to->header.slot = chip_host16(turn % measured_slots);
  to->header.version = phase % 2;
  to->header.round = chip_host32(phase / 2);
  return serve(context, true);
}
