// netsum's switch for bmv2's simple_switch: SwitchML's chip profile (docs/protocol-switchml-chip.md) beside an ordinary switch.
//
// A packet of 64 elements has one pass that adds them; one of 256 has four, for 64 each, with register entries of their own:
// each of these entries is a slot by itself, whose rule is the whole one. So it does not matter what is lost between two passes,
// nor which packets come between: a repeat adds what is missing. A packet that finds all bits set in the last of its passes has as
// many that answer; the last one of these sends the result.
//
// tests/model/p4_pipeline.h has the same in C++, and its states are searched; p4/budget.py adds up what it would need of a
// chip from the annotations @stage and @unit.

#include <core.p4>
#include <v1model.p4>

#include "common/constants.p4"
#include "common/headers.p4"
#include "common/tables.p4"

const bit<9> PORT_AGAIN = 510;  // no port: its queue leads back to the parser
const bit<16> FLOOD = 1;        // the group of all ports, which the control plane makes
#define LEARNED 65536

struct metadata_t {
  // What a pass tells the next one.
  @field_list(1) bit<8> pass_kind;
  @field_list(1) bit<8> quarter;
  @field_list(1) bit<32> offset;  // quarter * stride
  member_t member;
  bit<16> replica;
  bit<1> is_lane;
  bit<1> again;  // the packet has another pass
  bit<1> is_ours;
  bit<2> color;
}

struct headers_t {
  ethernet_t ethernet;
  ipv4_t ipv4;
  udp_t udp;
  chip_t chip;
  half_t low;
  half_t high;
}

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
    transition select(headers.udp.length) {
      LENGTH_OF_64 : parse_format;
      LENGTH_OF_256 : parse_format;
      default : accept;
    }
  }
  state parse_format {
    transition select(packet.lookahead<bit<8>>()) {
      CHIP_FORMAT : parse_chip;
      default : accept;
    }
  }
  state parse_chip {
    packet.extract(headers.chip);
    transition select(meta.pass_kind) {
      PASS_CONSUME : parse_quarter;
      default : accept;
    }
  }
  state parse_quarter {
    packet.extract(headers.low);
    packet.extract(headers.high);
    transition accept;
  }
}

control Verify(inout headers_t headers, inout metadata_t meta) {
  apply {}
}

// All other traffic, and what is too strange for the sums: by learned addresses, else to all ports.
control Forward(inout headers_t headers, inout standard_metadata_t standard) {
  @name(".netsum_learned") @forwarding register<bit<64>>(LEARNED) learned;  // by a hash of an address: 16 bits with the port where it was seen, and it
  apply {
    bit<32> at;
    bit<64> entry;
    if (headers.ethernet.source[40:40] == 0) {
      hash(at, HashAlgorithm.crc16, 32w0, { headers.ethernet.source }, 32w65536);
      learned.write(at, 7w0 ++ standard.ingress_port ++ headers.ethernet.source);
    }
    hash(at, HashAlgorithm.crc16, 32w0, { headers.ethernet.destination }, 32w65536);
    learned.read(entry, at);
    if (entry[47:0] == headers.ethernet.destination && headers.ethernet.destination[40:40] == 0) {
      if (entry[56:48] == standard.ingress_port) {
        mark_to_drop(standard);
      } else {
        standard.egress_spec = entry[56:48];
      }
    } else {
      standard.mcast_grp = FLOOD;
    }
  }
}

// One pass through the registers: 64 elements of one version of one slot.
control Sum(inout headers_t headers, inout metadata_t meta, inout standard_metadata_t standard) {
  // x, and the bitmap; the control plane sets its bit 31.
  @name(".netsum_gate") @stage(2) @unit(64) register<bit<64>>(REGISTER_ENTRIES) gate;
  @name(".netsum_done") @stage(3) @unit(32) register<bit<32>>(REGISTER_ENTRIES) done;
  @stage(3) @unit(16) register<bit<16>>(REGISTER_ENTRIES) exponents;
  // Of the packet that opened the round, for reports: the lower half of the operation's number, and the chunk.
  @name(".netsum_opened") @stage(3) @unit(64) register<bit<64>>(REGISTER_ENTRIES) opened;
#define SUMS(N, STAGE) @stage(STAGE) @unit(64) register<bit<64>>(REGISTER_ENTRIES) sums_##N;
  SUMS(00, 4) SUMS(01, 4) SUMS(02, 4) SUMS(03, 4) SUMS(04, 5) SUMS(05, 5) SUMS(06, 5) SUMS(07, 5)
  SUMS(08, 6) SUMS(09, 6) SUMS(10, 6) SUMS(11, 6) SUMS(12, 7) SUMS(13, 7) SUMS(14, 7) SUMS(15, 7)
  SUMS(16, 8) SUMS(17, 8) SUMS(18, 8) SUMS(19, 8) SUMS(20, 9) SUMS(21, 9) SUMS(22, 9) SUMS(23, 9)
  SUMS(24, 10) SUMS(25, 10) SUMS(26, 10) SUMS(27, 10) SUMS(28, 11) SUMS(29, 11) SUMS(30, 11) SUMS(31, 11)

  @name(".netsum_outcomes") counter(MAX_JOBS * OUTCOMES_OF_A_JOB, CounterType.packets) outcomes;

  // What came of the packet, and that it ends here.
  action end(bit<32> outcome) {
    outcomes.count((bit<32>)(meta.member.job ++ 4w0) + outcome);
    mark_to_drop(standard);
  }
  action go_on(bit<8> kind, bit<8> quarter, bit<32> offset) {
    meta.pass_kind = kind;
    meta.quarter = quarter;
    meta.offset = offset;
    meta.again = 1;
    standard.egress_spec = PORT_AGAIN;
  }

  apply {
    bit<32> a = headers.chip.round << 1;
    bit<32> index = meta.member.base + meta.offset + (bit<32>)(headers.chip.slot ++ headers.chip.version);
    bit<64> unit_of_gate;
    bit<32> unit_of_done;
    bit<16> exponent;
    bit<64> sum;
    if (meta.pass_kind == PASS_CONSUME) {
      // The gate: chip_enter().
      bit<32> before = 0;
      gate.read(unit_of_gate, index);
      bool is_early = unit_of_gate[63:32] < a;
      if (unit_of_gate[63:32] == a || unit_of_gate[63:32] == a + 1) {
        before = unit_of_gate[31:0];
        gate.write(index, (a + 1) ++ (before | meta.member.bit_of));
      }
      done.read(unit_of_done, index);
      bool is_done = before == 0 && unit_of_done == a + 2;
      bool is_refused = before == 0 && unit_of_done != a + 2;
      bool adds = before != 0 && (before & meta.member.bit_of) == 0;
      bool is_complete = is_done || (before | meta.member.bit_of) == meta.member.everyone;

      // A round's first packet is stored, others are added.
      bit<64> kept = before == ACCEPTED ? 64w0 : 0xffffffffffffffff;
      if (adds) {
        if (meta.quarter == 0) {
          exponents.read(exponent, index);
          if (before == ACCEPTED || exponent < headers.chip.exponent) exponents.write(index, headers.chip.exponent);
          if (before == ACCEPTED) opened.write(index, headers.chip.operation[31:0] ++ headers.chip.chunk);
        }
#define ADD(N) \
  sums_##N.read(sum, index); \
  sum = sum & kept; \
  sums_##N.write(index, (sum[63:32] + headers.low.w##N) ++ (sum[31:0] + headers.high.w##N));
        EACH_WORD(ADD)
      }
      headers.low.setInvalid();
      headers.high.setInvalid();

      if (is_refused) {
        if (is_early) { end(OUTCOME_EARLY); } else { end(OUTCOME_OLD); }
      } else if (meta.quarter != meta.member.last_quarter) {
        go_on(PASS_CONSUME, meta.quarter + 1, meta.offset + meta.member.stride);
      } else if (is_complete) {
        if (adds) outcomes.count((bit<32>)(meta.member.job ++ 4w0) + OUTCOME_COMPLETED);
        go_on(PASS_ANSWER, meta.quarter, meta.offset);
      } else if (adds) {
        end(OUTCOME_CONTRIBUTION);
      } else {
        end(OUTCOME_SILENT);
      }
    } else {
      // The gate: chip_leave().
      bool closes = false;
      gate.read(unit_of_gate, index);
      if (unit_of_gate[63:32] == a + 1) {
        closes = true;
        gate.write(index, (a + 2) ++ ACCEPTED);
        done.write(index, a + 2);
      }
      headers.low.setValid();
      headers.high.setValid();
#define READ(N) \
  sums_##N.read(sum, index); \
  headers.low.w##N = sum[63:32]; \
  headers.high.w##N = sum[31:0];
      EACH_WORD(READ)

      if (meta.quarter != 0) {
        go_on(PASS_ANSWER, meta.quarter - 1, meta.offset - meta.member.stride);
      } else {
        exponents.read(headers.chip.exponent, index);
        headers.chip.packet_type = CHIP_RESULT;
        if (closes) {
          standard.mcast_grp = meta.member.group;
          outcomes.count((bit<32>)(meta.member.job ++ 4w0) + OUTCOME_SENT_TO_ALL);
        } else {
          meta.replica = meta.member.replica;
          standard.egress_spec = meta.member.port;
          outcomes.count((bit<32>)(meta.member.job ++ 4w0) + OUTCOME_ANSWERED);
        }
      }
    }
  }
}

control Receive(inout headers_t headers, inout metadata_t meta, inout standard_metadata_t standard) {
  Forward() forward;
  FindMember() find_member;
  FindLane() find_lane;
  Sum() sum;
  @name(".netsum_arrived") counter(MAX_JOBS * OUTCOMES_OF_A_JOB, CounterType.packets_and_bytes) arrived;
  @name(".netsum_strangers") counter(2, CounterType.packets) strangers;  // of no job; with a field out of its range
  @name(".netsum_answers_to_strangers") meter(1, MeterType.packets) answers_to_strangers;

  action turn_around() {
    bit<48> hardware = headers.ethernet.source;
    headers.ethernet.source = headers.ethernet.destination;
    headers.ethernet.destination = hardware;
    bit<32> address = headers.ipv4.source;
    headers.ipv4.source = headers.ipv4.destination;
    headers.ipv4.destination = address;
    bit<16> port = headers.udp.source;
    headers.udp.source = headers.udp.destination;
    headers.udp.destination = port;
    headers.udp.checksum = 0;
    standard.egress_spec = standard.ingress_port;
  }

  apply {
    if (!headers.chip.isValid()) {
      forward.apply(headers, standard);
    } else {
      find_member.apply(headers.ipv4, headers.udp, headers.chip, meta.member);
      if (meta.member.is_known == 1) {
        meta.is_ours = 1;
        bool is_first = meta.pass_kind == PASS_CONSUME && meta.quarter == 0;
        if (is_first) arrived.count((bit<32>)(meta.member.job ++ 4w0));
        if (headers.chip.slot >= meta.member.slots) {
          arrived.count((bit<32>)(meta.member.job ++ 4w0) + OUTCOME_SLOT);
          mark_to_drop(standard);
        } else if (headers.udp.length != meta.member.length || headers.ipv4.length != meta.member.length + 20 ||
                   (is_first && standard.packet_length < 14 + (bit<32>)headers.ipv4.length)) {
          arrived.count((bit<32>)(meta.member.job ++ 4w0) + OUTCOME_SHAPE);
          mark_to_drop(standard);
        } else if (headers.chip.reserved != 0 || headers.chip.round > 0x7ffffffe ||
                   headers.chip.exponent > CHIP_UNKNOWN_EXPONENT) {
          strangers.count(1);
          mark_to_drop(standard);
        } else {
          sum.apply(headers, meta, standard);
        }
      } else {
        find_lane.apply(headers.ipv4, headers.udp, meta.is_lane);
        if (meta.is_lane == 0) {
          forward.apply(headers, standard);
        } else {
          meta.is_ours = 1;
          strangers.count(0);
          answers_to_strangers.execute_meter(0, meta.color);
          if (headers.chip.packet_type == CHIP_CONTRIBUTION && meta.color == 0) {
            // Never longer than what was asked: the header alone.
            headers.low.setInvalid();
            headers.high.setInvalid();
            headers.chip.packet_type = CHIP_UNKNOWN_JOB;
            headers.udp.length = LENGTH_OF_NONE;
            headers.ipv4.length = LENGTH_OF_NONE + 20;
            turn_around();
            truncate(14 + 20 + 8 + 48);
          } else {
            mark_to_drop(standard);
          }
        }
      }
    }
  }
}

control Send(inout headers_t headers, inout metadata_t meta, inout standard_metadata_t standard) {
  AddressResult() address_result;
  apply {
    if (meta.again == 1) {
      recirculate_preserving_field_list(1);
    } else if (meta.is_ours == 1) {
      if (standard.egress_rid != 0) meta.replica = standard.egress_rid;
      if (meta.replica != 0) {
        address_result.apply(headers.ethernet, headers.ipv4, headers.udp, meta.member.job, meta.replica);
      }
    } else if (standard.egress_port == standard.ingress_port) {
      mark_to_drop(standard);
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
    packet.emit(headers.chip);
    packet.emit(headers.low);
    packet.emit(headers.high);
  }
}

V1Switch(Parse(), Verify(), Receive(), Send(), SumHeader(), Deparse()) main;
