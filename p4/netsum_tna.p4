// netsum's switch for Tofino: SwitchML's chip profile (docs/protocol-switchml-chip.md) beside an ordinary switch. The passes of a
// packet are those of netsum_v1model.p4, and so are the tables and what the control plane does.
//
// The registers of Tofino 1 write two words at once and give one back: there a quarter is read in two passes, its upper half first.
// Those of Tofino 2 give back four, so there both halves are read at once.
//
// No compiler has placed it: what @stage and @unit say is the plan that p4/budget.py adds up, not a compiler's result.
// docs/data-planes.md has what is known.

#include <core.p4>
#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
#define PORT_AGAIN 6
#else
#include <tna.p4>
#define PORT_AGAIN 68
#endif

#define ENTRY_BITS 16  // elements need the containers of 32 bits
#include "common/constants.p4"
#include "common/headers.p4"
#include "common/tables.p4"

const bit<8> PASS_ANSWER_HIGH = 2;  // Tofino 1: of the upper half, before PASS_ANSWER; changes nothing

const bit<16> FLOOD = 1;  // the group of all ports
const bit<3> DIGEST_LEARN = 1;

// In front of a packet between two passes, and on its way to the egress.
header pass_t {
  bit<8> kind;
  bit<8> quarter;
  bit<16> within;  // the entry, of the job's: the slot and its version, and quarter * stride
  bit<16> job;     // for the egress: of a result, and 1 + the member that it is for; 0: all
  bit<16> replica;
  bit<8> is_result;
}

struct headers_t {
  pass_t pass;
  ethernet_t ethernet;
  ipv4_t ipv4;
  udp_t udp;
  chip_t chip;
  half_t low;
  half_t high;
}

struct metadata_t {
  member_t member;
  bit<16> index;
  bit<16> room;     // slots beyond the packet's
  bit<16> shape;    // 0: the datagram has the job's length
  bit<32> a;
  bit<32> before;   // what the gate says
  bit<32> missing;  // of the other members
  bit<8> is_done;
  bit<32> others;   // all members but this packet's
  bit<12> outcome;  // where it is counted
  bit<8> op;        // on the sums
  bit<1> is_lane;
  bit<1> is_over;   // and so is counted
  bit<8> color;
}

const bit<8> OP_NONE = 0;
const bit<8> OP_STORE = 1;
const bit<8> OP_ADD = 2;
const bit<8> OP_READ = 3;
const bit<8> OP_READ_HIGH = 4;

struct learn_t {
  bit<48> source;
  bit<9> port;
}

@noWarn("uninitialized-out-param")  // metadata begin as 0
parser IngressParse(packet_in packet, out headers_t headers, out metadata_t meta, out ingress_intrinsic_metadata_t standard) {
  state start {
    packet.extract(standard);
    packet.advance(PORT_METADATA_SIZE);
    transition select(standard.ingress_port) {
      PORT_AGAIN : parse_pass;
      default : parse_first;
    }
  }
  state parse_pass {
    packet.extract(headers.pass);
    transition select(headers.pass.kind) {
      PASS_CONSUME : parse_ethernet;
      default : parse_answer;
    }
  }
  state parse_answer {  // what it is was seen in the passes before
    packet.extract(headers.ethernet);
    packet.extract(headers.ipv4);
    packet.extract(headers.udp);
    packet.extract(headers.chip);
    transition accept;
  }
  state parse_first {
    headers.pass.setValid();
    headers.pass.kind = PASS_CONSUME;
    headers.pass.quarter = 0;
    headers.pass.within = 0;
    headers.pass.job = 0;
    headers.pass.replica = 0;
    headers.pass.is_result = 0;
    transition parse_ethernet;
  }
  state parse_ethernet {
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
    transition select(headers.udp.length, packet.lookahead<bit<8>>()) {
      (LENGTH_OF_64, CHIP_FORMAT) : parse_chip;
      (LENGTH_OF_256, CHIP_FORMAT) : parse_chip;
      default : accept;
    }
  }
  state parse_chip {
    packet.extract(headers.chip);
    packet.extract(headers.low);
    packet.extract(headers.high);
    transition accept;
  }
}

struct gate_t {
  bit<32> x;
  bit<32> bitmap;
}
struct pair_t {
  bit<32> low;
  bit<32> high;
}

control Sum(inout headers_t headers, inout metadata_t meta, inout ingress_intrinsic_metadata_for_tm_t tm,
            inout ingress_intrinsic_metadata_for_deparser_t deparser) {
  @stage(2) @unit(64) Register<gate_t, bit<16>>(REGISTER_ENTRIES, { 0, ACCEPTED }) gate;
  RegisterAction<gate_t, bit<16>, bit<32>>(gate) enter = {  // chip_enter()
    void apply(inout gate_t unit, out bit<32> result) {
      result = 0;
      if (unit.x == meta.a || unit.x == meta.a + 1) {
        result = unit.bitmap;
        unit.bitmap = unit.bitmap | meta.member.bit_of;
        unit.x = meta.a + 1;
      }
    }
  };
  RegisterAction<gate_t, bit<16>, bit<32>>(gate) leave = {  // chip_leave()
    void apply(inout gate_t unit, out bit<32> result) {
      result = 0;
      if (unit.x == meta.a + 1) {
        result = unit.bitmap;
        unit.bitmap = ACCEPTED;
        unit.x = meta.a + 2;
      }
    }
  };
  action at_gate() { meta.before = enter.execute(meta.index); }
  action at_gate_again() { meta.before = leave.execute(meta.index); }
  action past_gate() { meta.before = 0; }
  @stage(2) table gates {
    key = { headers.pass.kind : exact; }
    actions = { at_gate; at_gate_again; past_gate; }
    const entries = {
      PASS_CONSUME : at_gate();
      PASS_ANSWER : at_gate_again();
    }
    const default_action = past_gate();
    size = 2;
  }

  @stage(3) @unit(32) Register<bit<32>, bit<16>>(REGISTER_ENTRIES, 0) done;
  RegisterAction<bit<32>, bit<16>, bit<8>>(done) compare = {
    void apply(inout bit<32> unit, out bit<8> result) {
      result = 0;
      if (unit == meta.a + 2) result = 1;
    }
  };
  RegisterAction<bit<32>, bit<16>, bit<8>>(done) finish = {
    void apply(inout bit<32> unit) { unit = meta.a + 2; }
  };
  action at_done() { meta.is_done = compare.execute(meta.index); }
  action at_done_again() { finish.execute(meta.index); }
  @stage(3) table dones {
    key = { headers.pass.kind : exact; meta.before : ternary; }
    actions = { at_done; at_done_again; @defaultonly NoAction; }
    const entries = {
      (PASS_CONSUME, _) : at_done();
      (PASS_ANSWER, 0x80000000 &&& 0x80000000) : at_done_again();
    }
    const default_action = NoAction();
    size = 2;
  }

  // What the sums do. A repeat: the packet's bit was set.
  action sums(bit<8> op) { meta.op = op; }
#define SEEN(BIT) (PASS_CONSUME, BIT &&& BIT, BIT &&& BIT) : sums(OP_NONE);
  @stage(3) table verdict {
    key = { headers.pass.kind : exact; meta.before : ternary; meta.member.bit_of : ternary; }
    actions = { sums; }
    const entries = {
      (PASS_CONSUME, 0, _) : sums(OP_NONE);
      (PASS_CONSUME, ACCEPTED, _) : sums(OP_STORE);
      SEEN(0x1) SEEN(0x2) SEEN(0x4) SEEN(0x8) SEEN(0x10) SEEN(0x20) SEEN(0x40) SEEN(0x80) SEEN(0x100) SEEN(0x200)
      SEEN(0x400) SEEN(0x800) SEEN(0x1000) SEEN(0x2000) SEEN(0x4000) SEEN(0x8000) SEEN(0x10000) SEEN(0x20000)
      SEEN(0x40000) SEEN(0x80000) SEEN(0x100000) SEEN(0x200000) SEEN(0x400000) SEEN(0x800000) SEEN(0x1000000)
      SEEN(0x2000000) SEEN(0x4000000) SEEN(0x8000000) SEEN(0x10000000) SEEN(0x20000000) SEEN(0x40000000)
      (PASS_CONSUME, _, _) : sums(OP_ADD);
      (PASS_ANSWER, _, _) : sums(OP_READ);
      (PASS_ANSWER_HIGH, _, _) : sums(OP_READ_HIGH);
    }
    const default_action = sums(OP_NONE);
    size = 64;
  }

  // Of the packet's first 64 elements. Adding to what the same member gave already changes no maximum: no need for the verdict.
  @stage(3) @unit(16) Register<bit<16>, bit<16>>(REGISTER_ENTRIES, 0) exponents;
  RegisterAction<bit<16>, bit<16>, bit<16>>(exponents) first_exponent = {
    void apply(inout bit<16> unit) { unit = headers.chip.exponent; }
  };
  RegisterAction<bit<16>, bit<16>, bit<16>>(exponents) larger_exponent = {
    void apply(inout bit<16> unit) { unit = max(unit, headers.chip.exponent); }
  };
  RegisterAction<bit<16>, bit<16>, bit<16>>(exponents) read_exponent = {
    void apply(inout bit<16> unit, out bit<16> result) { result = unit; }
  };
  action store_exponent() { first_exponent.execute(meta.index); }
  action add_exponent() { larger_exponent.execute(meta.index); }
  action give_exponent() { headers.chip.exponent = read_exponent.execute(meta.index); }
  @stage(3) table largest {
    key = { headers.pass.kind : exact; headers.pass.quarter : exact; meta.before : ternary; }
    actions = { store_exponent; add_exponent; give_exponent; @defaultonly NoAction; }
    const entries = {
      (PASS_CONSUME, 0, ACCEPTED) : store_exponent();
      (PASS_CONSUME, 0, 0x80000000 &&& 0x80000000) : add_exponent();
      (PASS_ANSWER, 0, _) : give_exponent();
    }
    const default_action = NoAction();
    size = 4;
  }

  // Of the packet that opened the round, for reports.
  @stage(3) @unit(64) Register<pair_t, bit<16>>(REGISTER_ENTRIES) opened;
  RegisterAction<pair_t, bit<16>, bit<32>>(opened) note = {
    void apply(inout pair_t unit) {
      unit.low = headers.chip.operation[31:0];
      unit.high = headers.chip.chunk;
    }
  };
  action note_opened() { note.execute(meta.index); }
  @stage(3) table openings {
    key = { headers.pass.kind : exact; headers.pass.quarter : exact; meta.before : exact; }
    actions = { note_opened; @defaultonly NoAction; }
    const entries = { (PASS_CONSUME, 0, ACCEPTED) : note_opened(); }
    const default_action = NoAction();
    size = 1;
  }

#if __TARGET_TOFINO__ == 2
#define READS(N) \
  RegisterAction2<pair_t, bit<16>, bit<32>, bit<32>>(sums_##N) read_##N = { \
    void apply(inout pair_t unit, out bit<32> low, out bit<32> high) { low = unit.low; high = unit.high; } \
  }; \
  action give_##N() { headers.low.w##N = read_##N.execute(meta.index, headers.high.w##N); } \
  action give_high_##N() {}
#else
#define READS(N) \
  RegisterAction<pair_t, bit<16>, bit<32>>(sums_##N) read_##N = { \
    void apply(inout pair_t unit, out bit<32> result) { result = unit.low; } \
  }; \
  RegisterAction<pair_t, bit<16>, bit<32>>(sums_##N) read_high_##N = { \
    void apply(inout pair_t unit, out bit<32> result) { result = unit.high; } \
  }; \
  action give_##N() { headers.low.w##N = read_##N.execute(meta.index); } \
  action give_high_##N() { headers.high.w##N = read_high_##N.execute(meta.index); }
#endif
#define SUMS(N, STAGE) \
  @stage(STAGE) @unit(64) Register<pair_t, bit<16>>(REGISTER_ENTRIES) sums_##N; \
  RegisterAction<pair_t, bit<16>, bit<32>>(sums_##N) store_##N = { \
    void apply(inout pair_t unit) { unit.low = headers.low.w##N; unit.high = headers.high.w##N; } \
  }; \
  RegisterAction<pair_t, bit<16>, bit<32>>(sums_##N) add_##N = { \
    void apply(inout pair_t unit) { unit.low = unit.low + headers.low.w##N; unit.high = unit.high + headers.high.w##N; } \
  }; \
  READS(N) \
  action put_##N() { store_##N.execute(meta.index); } \
  action put_more_##N() { add_##N.execute(meta.index); } \
  @stage(STAGE) table words_##N { \
    key = { meta.op : exact; } \
    actions = { put_##N; put_more_##N; give_##N; give_high_##N; @defaultonly NoAction; } \
    const entries = { \
      OP_STORE : put_##N(); OP_ADD : put_more_##N(); OP_READ : give_##N(); OP_READ_HIGH : give_high_##N(); \
    } \
    const default_action = NoAction(); \
    size = 4; \
  }
  SUMS(00, 4) SUMS(01, 4) SUMS(02, 4) SUMS(03, 4) SUMS(04, 5) SUMS(05, 5) SUMS(06, 5) SUMS(07, 5)
  SUMS(08, 6) SUMS(09, 6) SUMS(10, 6) SUMS(11, 6) SUMS(12, 7) SUMS(13, 7) SUMS(14, 7) SUMS(15, 7)
  SUMS(16, 8) SUMS(17, 8) SUMS(18, 8) SUMS(19, 8) SUMS(20, 9) SUMS(21, 9) SUMS(22, 9) SUMS(23, 9)
  SUMS(24, 10) SUMS(25, 10) SUMS(26, 10) SUMS(27, 10) SUMS(28, 11) SUMS(29, 11) SUMS(30, 11) SUMS(31, 11)

  Counter<bit<32>, bit<12>>(MAX_JOBS * OUTCOMES_OF_A_JOB, CounterType_t.PACKETS) outcomes;

  action end(bit<12> outcome) {
    meta.outcome = meta.outcome | outcome;
    meta.is_over = 1;
    deparser.drop_ctl = 1;
  }
  action go_on() {
    tm.ucast_egress_port = PORT_AGAIN;
    tm.bypass_egress = 1;
  }

  apply {
    gates.apply();
    meta.missing = ~meta.before & meta.others;
    dones.apply();
    verdict.apply();
    largest.apply();
    openings.apply();

    bool was_consumed = headers.pass.kind == PASS_CONSUME;
    if (!was_consumed) {
      headers.low.setValid();
      headers.high.setValid();
    }
#define APPLY(N) words_##N.apply();
    EACH_WORD(APPLY)

    // Then: whether there is another pass.
    if (was_consumed) {
      headers.low.setInvalid();
      headers.high.setInvalid();
      if (meta.before == 0 && meta.is_done == 0) {
        end((bit<12>)OUTCOME_OLD);
      } else if (headers.pass.quarter != meta.member.last_quarter) {
        headers.pass.quarter = headers.pass.quarter + 1;
        headers.pass.within = headers.pass.within + meta.member.stride;
        go_on();
      } else if (meta.before == 0 || meta.missing == 0) {
#if __TARGET_TOFINO__ == 2
        headers.pass.kind = PASS_ANSWER;
#else
        headers.pass.kind = PASS_ANSWER_HIGH;
#endif
        go_on();
      } else if (meta.op == OP_NONE) {
        end((bit<12>)OUTCOME_SILENT);
      } else {
        end((bit<12>)OUTCOME_CONTRIBUTION);
      }
    } else if (headers.pass.kind == PASS_ANSWER_HIGH) {
      headers.low.setInvalid();
      headers.pass.kind = PASS_ANSWER;
      go_on();
    } else if (headers.pass.quarter != 0) {
      headers.pass.quarter = headers.pass.quarter - 1;
      headers.pass.within = headers.pass.within - meta.member.stride;
#if __TARGET_TOFINO__ != 2
      headers.high.setInvalid();
      headers.pass.kind = PASS_ANSWER_HIGH;
#endif
      go_on();
    } else {
#if __TARGET_TOFINO__ != 2
      headers.high.setInvalid();
#endif
      headers.chip.packet_type = CHIP_RESULT;
      headers.pass.is_result = 1;
      headers.pass.job = meta.member.job;
      if (meta.before == 0) {
        headers.pass.replica = meta.member.replica;
        tm.ucast_egress_port = (PortId_t)meta.member.port;
      } else {
        tm.mcast_grp_a = meta.member.group;
      }
    }
    if (meta.is_over == 1) outcomes.count(meta.outcome);
  }
}

control Ingress(inout headers_t headers, inout metadata_t meta, in ingress_intrinsic_metadata_t standard,
                in ingress_intrinsic_metadata_from_parser_t parsed, inout ingress_intrinsic_metadata_for_deparser_t deparser,
                inout ingress_intrinsic_metadata_for_tm_t tm) {
  FindMember() find_member;
  FindLane() find_lane;
  Sum() sum;
  Counter<bit<32>, bit<2>>(4, CounterType_t.PACKETS) strangers;
  Meter<bit<1>>(1, MeterType_t.PACKETS) answers_to_strangers;

  action to_port(PortId_t port) { tm.ucast_egress_port = port; }
  action flood() {
    tm.mcast_grp_a = FLOOD;
    tm.level2_exclusion_id = (L2ExclusionId_t)standard.ingress_port;
  }
  table addresses {
    key = { headers.ethernet.destination : exact; }
    actions = { to_port; flood; }
    const default_action = flood();
    size = 4096;
  }
  action known() {}
  action learn() { deparser.digest_type = DIGEST_LEARN; }
  table sources {
    key = { headers.ethernet.source : exact; standard.ingress_port : exact; }
    actions = { known; learn; }
    const default_action = learn();
    size = 4096;
  }

  // Whether all fields are in their ranges: the round is at most 0x7ffffffe, the exponent at most 256.
  action right() {}
  action wrong() { deparser.drop_ctl = 1; }
  table fields {
    key = {
      meta.room : ternary;
      meta.shape : ternary;
      headers.chip.reserved : ternary;
      headers.chip.round : ternary;
      headers.chip.exponent : ternary;
    }
    actions = { right; wrong; }
    const entries = {
      (0, _, _, _, _) : wrong();
      (_, _, _, 0x7fffffff, _) : wrong();
      (_, 0, 0, 0 &&& 0x80000000, 0 &&& 0xff00) : right();
      (_, 0, 0, 0 &&& 0x80000000, CHIP_UNKNOWN_EXPONENT) : right();
    }
    const default_action = wrong();
    size = 4;
  }

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
    tm.ucast_egress_port = standard.ingress_port;
  }

  apply {
    if (headers.pass.kind == PASS_CONSUME && headers.pass.quarter == 0) {
      headers.pass.within = headers.chip.slot[14:0] ++ headers.chip.version;
    }
    find_member.apply(headers.ipv4, headers.udp, headers.chip, meta.member);
    find_lane.apply(headers.ipv4, headers.udp, meta.is_lane);
    // For every packet, of whatever kind: under a condition it would take a stage more.
    meta.a = headers.chip.round << 1;
    meta.index = meta.member.base + headers.pass.within;
    meta.others = meta.member.everyone & ~meta.member.bit_of;
    meta.outcome = meta.member.job[7:0] ++ 4w0;
    meta.room = meta.member.slots |-| headers.chip.slot;
    meta.shape = meta.member.length ^ headers.udp.length;
    if (headers.chip.isValid() && meta.member.is_known == 1) {
      switch (fields.apply().action_run) {
        right : { sum.apply(headers, meta, tm, deparser); }
        wrong : { strangers.count(1); }
      }
    } else if (headers.chip.isValid() && meta.is_lane == 1) {
      strangers.count(0);
      meta.color = answers_to_strangers.execute(0);
      // The answer is the header alone: what follows a packet's first 64 elements cannot be cut off here, so packets of 256
      // have none.
      if (headers.chip.packet_type == CHIP_CONTRIBUTION && headers.udp.length == LENGTH_OF_64 && meta.color == 0) {
        headers.low.setInvalid();
        headers.high.setInvalid();
        headers.chip.packet_type = CHIP_UNKNOWN_JOB;
        headers.udp.length = LENGTH_OF_NONE;
        headers.ipv4.length = LENGTH_OF_NONE + 20;
        headers.pass.is_result = 2;
        turn_around();
      } else {
        deparser.drop_ctl = 1;
      }
    } else {
      sources.apply();
      addresses.apply();
    }
  }
}

control IngressDeparse(packet_out packet, inout headers_t headers, in metadata_t meta,
                       in ingress_intrinsic_metadata_for_deparser_t deparser, in ingress_intrinsic_metadata_t standard) {
  Digest<learn_t>(DIGEST_LEARN) learned;
  apply {
    if (deparser.digest_type == DIGEST_LEARN) {
      learned.pack({ headers.ethernet.source, (bit<9>)standard.ingress_port });
    }
    packet.emit(headers);
  }
}

struct egress_metadata_t {}

parser EgressParse(packet_in packet, out headers_t headers, out egress_metadata_t meta, out egress_intrinsic_metadata_t standard) {
  state start {
    packet.extract(standard);
    packet.extract(headers.pass);
    packet.extract(headers.ethernet);
    transition select(headers.pass.is_result) {
      0 : accept;
      default : parse_rest;
    }
  }
  state parse_rest {
    packet.extract(headers.ipv4);
    packet.extract(headers.udp);
    transition accept;
  }
}

control Egress(inout headers_t headers, inout egress_metadata_t meta, in egress_intrinsic_metadata_t standard,
               in egress_intrinsic_metadata_from_parser_t parsed, inout egress_intrinsic_metadata_for_deparser_t deparser,
               inout egress_intrinsic_metadata_for_output_port_t out_port) {
  AddressResult() address_result;
  apply {
    if (headers.pass.is_result == 1) {
      if (headers.pass.replica == 0) headers.pass.replica = standard.egress_rid;
      address_result.apply(headers.ethernet, headers.ipv4, headers.udp, headers.pass.job, headers.pass.replica);
    }
    headers.pass.setInvalid();
  }
}

control EgressDeparse(packet_out packet, inout headers_t headers, in egress_metadata_t meta,
                      in egress_intrinsic_metadata_for_deparser_t deparser) {
  Checksum() checksum;
  apply {
    if (headers.ipv4.isValid()) {
      headers.ipv4.checksum = checksum.update({ headers.ipv4.version, headers.ipv4.words, headers.ipv4.service,
        headers.ipv4.length, headers.ipv4.id, headers.ipv4.flags, headers.ipv4.fragment, headers.ipv4.time_to_live,
        headers.ipv4.protocol, headers.ipv4.source, headers.ipv4.destination });
    }
    packet.emit(headers);
  }
}

Pipeline(IngressParse(), Ingress(), IngressDeparse(), EgressParse(), Egress(), EgressDeparse()) pipe;
Switch(pipe) main;
