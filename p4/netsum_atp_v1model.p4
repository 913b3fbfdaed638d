// ATP's chip profile for bmv2's simple_switch (docs/protocol-atp-chip.md): its first level, packets of 64 elements, and no other traffic.
// There is no control plane for it yet.
//
// A packet has one pass, which no other comes between: so the two halves of a slot, which a chip needs, are always the same here, and
// a slot has one owner. tests/model/atp_p4_source.py interprets control Sum next to the rule in C.

#include <core.p4>
#include <v1model.p4>

#include "common/headers.p4"

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<8> PROTOCOL_UDP = 17;

const bit<8> ATP_VERSION = 0xa3;
const bit<8> ATP_GRADIENT = 1;
const bit<8> ATP_DONE = 4;  // that and what is between comes from above
const bit<16> LENGTH_OF_GRADIENT = 8 + 60 + 64 * 4;  // of a datagram, with UDP's header

// Of the flags' first byte, and of the second.
const bit<8> FLAG_RESEND = 0x01;
const bit<8> FLAG_ECN = 0x02;
const bit<8> FLAG_COLLISION = 0x04;
const bit<8> FLAG_OVERFLOW = 0x08;
const bit<8> FLAG_WIDE = 0x10;
const bit<8> FLAG_DIRECT = 0x20;
const bit<8> MORE_UNCHECKED = 0x02;
const bit<8> MORE_BROAD = 0x04;

#define REGISTER_ENTRIES 8192
#define MAX_JOBS 256
#define MAX_CHILDREN 32

// What became of a job's packet.
#define OUTCOMES_OF_A_JOB 16
const bit<32> OUTCOME_ADDED = 0;
const bit<32> OUTCOME_SILENT = 1;     // a repeat
const bit<32> OUTCOME_SUM = 2;        // it left as one
const bit<32> OUTCOME_COLLISION = 3;  // passed on, as is all below
const bit<32> OUTCOME_MISMATCH = 4;
const bit<32> OUTCOME_RESEND = 5;
const bit<32> OUTCOME_DIRECT = 6;
const bit<32> OUTCOME_FROM_ABOVE = 7;
const bit<32> OUTCOME_SHAPE = 8;

// 40 bytes. Integers are little-endian.
header atp_t {
  bit<8> version;
  bit<8> packet_type;
  bit<8> flags;
  bit<8> more_flags;
  bit<32> checksum;
  bit<64> job_epoch;
  bit<64> sequence;
  bit<32> rank_epoch;
  bit<32> signature;
  bit<32> slot;
  bit<16> elements;
  bit<8> level;
  bit<8> exponent;
}

// 20 bytes, of a gradient.
header directions_t {
  bit<32> fan_in;
  bit<32> bitmap;
  bit<96> upper_bitmaps;
}

struct atp_member_t {
  bit<1> is_known;
  bit<16> job;           // 0 ... MAX_JOBS - 1
  bit<16> number;        // in owners: 1 ... 65535, given again as late as possible
  bit<32> bit_of;        // in the bitmap; 0: the parent
  bit<32> everyone;      // the bitmap with all bits
  bit<32> mask;          // slots - 1, a power of two less one
  bit<32> window;
  bit<32> folded_epochs; // as in packets
  bit<8> next_level;
  bit<16> group;         // to all children
  bit<9> parent_port;
}

struct metadata_t {
  atp_member_t member;
  bit<32> fan_in;  // of a gradient's first level; else 0
  bit<32> bitmap;
  bit<16> replica;  // 0: to the parent
  bit<1> is_ours;
}

struct headers_t {
  ethernet_t ethernet;
  ipv4_t ipv4;
  udp_t udp;
  atp_t atp;
  directions_t directions;
  half_t low;
  half_t high;
}

#define SWAPPED(X) (X[7:0] ++ X[15:8] ++ X[23:16] ++ X[31:24])

parser Parse(packet_in packet, out headers_t headers, inout metadata_t meta, inout standard_metadata_t standard) {
  state start {
    packet.extract(headers.ethernet);
    transition select(headers.ethernet.ether_type) {
      ETHERTYPE_IPV4 : parse_ipv4;
      default : accept;
    }
  }
  state parse_ipv4 {
    packet.extract(headers.ipv4);
    transition select(headers.ipv4.version, headers.ipv4.words, headers.ipv4.flags, headers.ipv4.fragment, headers.ipv4.protocol) {
      (4, 5, 0 &&& 1, 0, PROTOCOL_UDP) : parse_udp;
      default : accept;
    }
  }
  state parse_udp {
    packet.extract(headers.udp);
    transition select(packet.lookahead<bit<8>>()) {
      ATP_VERSION : parse_atp;
      default : accept;
    }
  }
  state parse_atp {
    packet.extract(headers.atp);
    transition select(headers.atp.packet_type, headers.udp.length) {
      (ATP_GRADIENT, LENGTH_OF_GRADIENT) : parse_values;
      default : accept;
    }
  }
  state parse_values {
    packet.extract(headers.directions);
    packet.extract(headers.low);
    packet.extract(headers.high);
    transition accept;
  }
}

control Verify(inout headers_t headers, inout metadata_t meta) {
  apply {}
}

control Sum(inout headers_t headers, inout metadata_t meta, inout standard_metadata_t standard) {
  // The job's number and 48 bits of the sequence number; upper half 0: free. Then what the rule in C has.
  @name(".netsum_atp_owner") register<bit<64>>(REGISTER_ENTRIES) owner;
  register<bit<32>>(REGISTER_ENTRIES) signatures;
  register<bit<32>>(REGISTER_ENTRIES) bitmaps;
  register<bit<16>>(REGISTER_ENTRIES) sticky;  // flags, exponent
#define SUMS(N) register<bit<64>>(REGISTER_ENTRIES) sums_##N;
  EACH_WORD(SUMS)
  @name(".netsum_atp_outcomes") counter(MAX_JOBS * OUTCOMES_OF_A_JOB, CounterType.packets) outcomes;

  action count(bit<32> outcome) { outcomes.count((bit<32>)(meta.member.job ++ 4w0) + outcome); }
  action pass_on(bit<32> outcome, bit<8> flags) {
    count(outcome);
    headers.atp.flags = headers.atp.flags | flags;
    headers.atp.level = meta.member.next_level;
    standard.egress_spec = meta.member.parent_port;
  }

  apply {
    bit<32> index = SWAPPED(headers.atp.slot) & meta.member.mask;
    bit<16> upper = headers.atp.sequence[23:16] ++ headers.atp.sequence[31:24];
    bit<32> high = meta.member.number ++ upper;
    bit<32> low = SWAPPED(headers.atp.sequence[63:32]);
    bit<32> signature = SWAPPED(headers.atp.signature);
    bool is_resend = (headers.atp.flags & FLAG_RESEND) != 0;
    bool is_gradient = headers.atp.packet_type == ATP_GRADIENT;
    bit<64> unit;
    if (is_gradient && (headers.atp.flags & FLAG_DIRECT) != 0) {
      pass_on(OUTCOME_DIRECT, 8w0);
    } else if (is_gradient && ((headers.atp.flags & FLAG_WIDE) != 0 || headers.atp.sequence[15:0] != 0)) {
      pass_on(OUTCOME_RESEND, FLAG_RESEND);
    } else {
      // The owner: atp_chip_enter(), atp_chip_leave().
      owner.read(unit, index);
      bool same = unit[63:32] == high;
      bool ours = same && unit[31:0] == low;
      bit<32> later = low - unit[31:0] - meta.member.window;
      bool taken = is_gradient && !is_resend && !ours && (unit[63:32] == 0 || (same && later < 0x80000000));
      if (taken) {
        owner.write(index, high ++ low);
      } else if (ours && (is_resend || !is_gradient)) {
        owner.write(index, 32w0 ++ low);
      }
      if (!is_gradient) {
        count(OUTCOME_FROM_ABOVE);
        if (headers.atp.packet_type == ATP_DONE) { mark_to_drop(standard); } else { standard.mcast_grp = meta.member.group; }
      } else if (!ours && !taken) {
        if (is_resend) { pass_on(OUTCOME_RESEND, 8w0); } else { pass_on(OUTCOME_COLLISION, FLAG_RESEND | FLAG_COLLISION); }
      } else {
        // atp_chip_agrees()
        bit<32> mine = signature;
        if (taken) { signatures.write(index, signature); } else { signatures.read(mine, index); }
        if (mine != signature) {
          pass_on(OUTCOME_MISMATCH, FLAG_RESEND);
        } else {
          // atp_chip_mark(), atp_chip_seen()
          bit<32> before;
          bitmaps.read(before, index);
          if (taken) before = 0;
          bit<32> after = before | meta.member.bit_of;
          bitmaps.write(index, after);
          bool adds = (before & meta.member.bit_of) == 0;
          bool leaves = is_resend || (adds && after == meta.member.everyone);

          bit<16> flags;
          sticky.read(flags, index);
          if (before == 0) flags = 0;
          bit<8> exponent = flags[7:0];
          if (exponent < headers.atp.exponent) exponent = headers.atp.exponent;
          bit<8> sticks = flags[15:8] | (headers.atp.flags & (FLAG_ECN | FLAG_OVERFLOW));
          sticky.write(index, sticks ++ exponent);

          bit<64> kept = before == 0 ? 64w0 : 0xffffffffffffffff;
          bit<32> given = adds ? 0xffffffff : 32w0;
          bit<64> sum;
#define ADD(N) \
  sums_##N.read(sum, index); \
  sum = sum & kept; \
  sum = (sum[63:32] + (SWAPPED(headers.low.w##N) & given)) ++ (sum[31:0] + (SWAPPED(headers.high.w##N) & given)); \
  sums_##N.write(index, sum); \
  headers.low.w##N = sum[39:32] ++ sum[47:40] ++ sum[55:48] ++ sum[63:56]; \
  headers.high.w##N = SWAPPED(sum);
          EACH_WORD(ADD)

          if (leaves) {
            pass_on(OUTCOME_SUM, sticks);
            headers.atp.exponent = exponent;
            headers.atp.rank_epoch = meta.member.folded_epochs;
            headers.directions.bitmap = SWAPPED(after);
          } else {
            if (adds) { count(OUTCOME_ADDED); } else { count(OUTCOME_SILENT); }
            mark_to_drop(standard);
          }
        }
      }
    }
  }
}

control Receive(inout headers_t headers, inout metadata_t meta, inout standard_metadata_t standard) {
  Sum() sum;
  @name(".netsum_atp_arrived") counter(MAX_JOBS * OUTCOMES_OF_A_JOB, CounterType.packets_and_bytes) arrived;

  @name(".netsum_atp_is_member") action is_member(bit<16> job, bit<16> number, bit<32> bit_of, bit<32> everyone, bit<32> mask, bit<32> window,
                   bit<32> folded_epochs, bit<8> next_level, bit<16> group, bit<9> parent_port) {
    meta.member.is_known = 1;
    meta.member.job = job;
    meta.member.number = number;
    meta.member.bit_of = bit_of;
    meta.member.everyone = everyone;
    meta.member.mask = mask;
    meta.member.window = window;
    meta.member.folded_epochs = folded_epochs;
    meta.member.next_level = next_level;
    meta.member.group = group;
    meta.member.parent_port = parent_port;
  }
  action is_stranger() { meta.member.is_known = 0; }
  // Of a rank its life, its one bit, and what its level waits for; of the parent all ranks' lives, and the rest 0.
  @name(".netsum_atp_members") table members {
    key = {
      headers.atp.job_epoch : exact;
      headers.atp.packet_type : exact;
      headers.atp.rank_epoch : exact;
      headers.atp.level : exact;
      meta.fan_in : exact;
      meta.bitmap : exact;
      headers.ipv4.source : exact;
      headers.udp.source : exact;
      headers.ipv4.destination : exact;
      headers.udp.destination : exact;
    }
    actions = { is_member; is_stranger; }
    const default_action = is_stranger();
    size = MAX_JOBS * MAX_CHILDREN;
  }

  apply {
    if (!headers.atp.isValid()) {
      mark_to_drop(standard);
    } else {
      if (headers.directions.isValid()) {
        meta.fan_in = headers.directions.fan_in;
        meta.bitmap = headers.directions.bitmap;
      }
      members.apply();
      if (meta.member.is_known == 0) {
        mark_to_drop(standard);
      } else if (headers.atp.packet_type == ATP_GRADIENT &&
                 (headers.atp.more_flags & (MORE_UNCHECKED | MORE_BROAD)) != MORE_UNCHECKED) {
        arrived.count((bit<32>)(meta.member.job ++ 4w0) + OUTCOME_SHAPE);
        mark_to_drop(standard);
      } else {
        meta.is_ours = 1;
        arrived.count((bit<32>)(meta.member.job ++ 4w0));
        sum.apply(headers, meta, standard);
      }
    }
  }
}

control Send(inout headers_t headers, inout metadata_t meta, inout standard_metadata_t standard) {
  @name(".netsum_atp_address") action address(bit<48> to, bit<48> from, bit<32> to_address, bit<32> from_address, bit<16> to_port, bit<16> from_port) {
    headers.ethernet.destination = to;
    headers.ethernet.source = from;
    headers.ipv4.destination = to_address;
    headers.ipv4.source = from_address;
    headers.ipv4.time_to_live = 64;
    headers.udp.destination = to_port;
    headers.udp.source = from_port;
    headers.udp.checksum = 0;
  }
  action unaddressed() {}
  @name(".netsum_atp_receivers") table receivers {
    key = { meta.member.job : exact; meta.replica : exact; }
    actions = { address; unaddressed; }
    const default_action = unaddressed();
    size = MAX_JOBS * MAX_CHILDREN;
  }
  apply {
    if (meta.is_ours == 1) {
      meta.replica = standard.egress_rid;
      receivers.apply();
    }
  }
}

control SumHeader(inout headers_t headers, inout metadata_t meta) {
  apply {
    update_checksum(meta.is_ours == 1 && headers.ipv4.isValid(),
                    { headers.ipv4.version, headers.ipv4.words, headers.ipv4.service, headers.ipv4.length, headers.ipv4.id,
                      headers.ipv4.flags, headers.ipv4.fragment, headers.ipv4.time_to_live, headers.ipv4.protocol,
                      headers.ipv4.source, headers.ipv4.destination },
                    headers.ipv4.checksum, HashAlgorithm.csum16);
  }
}

control Deparse(packet_out packet, in headers_t headers) {
  apply {
    packet.emit(headers.ethernet);
    packet.emit(headers.ipv4);
    packet.emit(headers.udp);
    packet.emit(headers.atp);
    packet.emit(headers.directions);
    packet.emit(headers.low);
    packet.emit(headers.high);
  }
}

V1Switch(Parse(), Verify(), Receive(), Send(), SumHeader(), Deparse()) main;
