// Which frames of an interface go to AF_XDP sockets, the queue's own each (xdp_steering.h). The kernel gets all others as if
// this were not there, and so it does what a queue without a socket receives.

#include <linux/bpf.h>
// The kernel's headers first.
#include <bpf/bpf_helpers.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include "transport/bypass/xdp_doors.h"

struct {
  __uint(type, BPF_MAP_TYPE_XSKMAP);
  __uint(max_entries, 1);  // the loader says how many
  __type(key, __u32);
  __type(value, __u32);
} sockets SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, xdp_most_doors);
  __type(key, __u32);  // a UDP port, in network order
  __type(value, struct XdpDoor);
} doors SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, xdp_most_queues);
  __type(key, __u32);
  __type(value, __u32);  // 0: nobody
} owners SEC(".maps");

// This host's IPv4 addresses, and its Ethernet address here.
struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __uint(max_entries, xdp_most_addresses);
  __type(key, __u32);
  __type(value, __u32);  // without a meaning
} addresses SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct XdpStation);
} station SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct XdpLimit);
} limit SEC(".maps");

static __always_inline int is_to_this_host(const struct ethhdr* ethernet, const struct iphdr* ip) {
  const __u32 only = 0, to = ip->daddr;
  const struct XdpStation* const here = bpf_map_lookup_elem(&station, &only);
  if (!here) return 0;
  for (int i = 0; i < ETH_ALEN; ++i) {
    if (here->address[i] != ethernet->h_dest[i]) return 0;
  }
  return bpf_map_lookup_elem(&addresses, &to) != 0;
}

SEC("xdp")
int every_frame(struct xdp_md* context) {
  const __u32 only = 0, bytes = context->data_end - context->data;
  struct XdpLimit* const at_most = bpf_map_lookup_elem(&limit, &only);
  if (!at_most) return XDP_ABORTED;
  if (bytes > at_most->longest) {
    if (bytes > at_most->longest_seen) at_most->longest_seen = bytes;
    __sync_fetch_and_add(&at_most->dropped, 1);
    return XDP_DROP;
  }
  return (int)bpf_redirect_map(&sockets, context->rx_queue_index, XDP_PASS);
}

// IPv4 to this host, without options and fragments: the kernel takes the rest, also what it forwards to a host with the same
// port, and frames that are longer than a socket's memory for one.
SEC("xdp.frags")
int some_ports(struct xdp_md* context) {
  const void* const end = (const void*)(long)context->data_end;
  const struct ethhdr* const ethernet = (const void*)(long)context->data;
  const struct iphdr* const ip = (const void*)(ethernet + 1);
  const struct udphdr* const udp = (const void*)(ip + 1);
  if ((const void*)(udp + 1) > end || ethernet->h_proto != __builtin_bswap16(ETH_P_IP)) return XDP_PASS;
  if (ip->version != 4 || ip->ihl != 5 || ip->protocol != IPPROTO_UDP) return XDP_PASS;
  if ((ip->frag_off & __builtin_bswap16(0x3fff)) != 0) return XDP_PASS;
  const __u32 port = udp->dest;
  const struct XdpDoor* const door = bpf_map_lookup_elem(&doors, &port);
  if (!door || (door->address != 0 && door->address != ip->daddr) || !is_to_this_host(ethernet, ip)) return XDP_PASS;
  if (bpf_xdp_get_buff_len(context) > door->longest) return XDP_PASS;
  const __u32 queue = context->rx_queue_index;
  const __u32* const owner = bpf_map_lookup_elem(&owners, &queue);
  if (!owner || *owner != door->owner) return XDP_PASS;
  return (int)bpf_redirect_map(&sockets, queue, XDP_PASS);
}

char license_of_program[] SEC("license") = "Apache-2.0";
