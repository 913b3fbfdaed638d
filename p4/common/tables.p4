// The tables that the control plane fills: when it starts, and at admission. It knows them, and what it reads, by the names that
// are given to them (@name).
#ifndef NETSUM_TABLES_P4
#define NETSUM_TABLES_P4

// What the table of members says of a packet's sender.
struct member_t {
  bit<1> is_known;
  bit<16> job;          // 0 ... MAX_JOBS - 1
  bit<16> replica;      // the sender's, among copies of the job's results: its member number + 1
  bit<32> bit_of;       // in the bitmap
  bit<32> everyone;     // the bitmap with all bits
  bit<ENTRY_BITS> base;    // of the job's register entries
  bit<ENTRY_BITS> stride;  // from 64 elements to the next 64 of all slots: twice the slots
  bit<16> slots;
  bit<16> length;       // of the job's datagrams, with UDP's header
  bit<8> last_quarter;  // 0 or 3
  bit<9> port;          // to the sender
  bit<16> group;        // to all members
}

// The one match of a contribution: job, sender and lane. The format has no epoch of the rank: that of the job and the address that the
// rank registered when it joined are what tells its former lives.
control FindMember(in ipv4_t ipv4, in udp_t udp, in chip_t chip, inout member_t member) {
  @name(".netsum_is_member") action is_member(bit<16> job, bit<16> replica, bit<32> bit_of, bit<32> everyone, bit<ENTRY_BITS> base,
                   bit<ENTRY_BITS> stride, bit<16> slots, bit<16> length, bit<8> last_quarter, bit<9> port, bit<16> group) {
    member.is_known = 1;
    member.job = job;
    member.replica = replica;
    member.bit_of = bit_of;
    member.everyone = everyone;
    member.base = base;
    member.stride = stride;
    member.slots = slots;
    member.length = length;
    member.last_quarter = last_quarter;
    member.port = port;
    member.group = group;
  }
  action is_stranger() { member.is_known = 0; }

  @name(".netsum_members") @stage(0) table members {
    key = {
      chip.job_epoch : exact;
      chip.member : exact;
      chip.packet_type : exact;
      ipv4.source : exact;
      udp.source : exact;
      ipv4.destination : exact;
      udp.destination : exact;
    }
    actions = { is_member; is_stranger; }
    const default_action = is_stranger();
    size = MAX_JOBS * MAX_MEMBERS;
  }

  apply { members.apply(); }
}

// Whose datagrams of the profile are the switch's own: not to be forwarded, even if no job knows them.
control FindLane(in ipv4_t ipv4, in udp_t udp, inout bit<1> is_lane) {
  @name(".netsum_own_lane") action own() { is_lane = 1; }
  action other() { is_lane = 0; }
  @name(".netsum_lanes") @stage(0) table lanes {
    key = { ipv4.destination : exact; udp.destination : exact; }
    actions = { own; other; }
    const default_action = other();
    size = 64;
  }
  apply { lanes.apply(); }
}

// A result on its way to one of its receivers.
control AddressResult(inout ethernet_t ethernet, inout ipv4_t ipv4, inout udp_t udp, in bit<16> job, in bit<16> replica) {
  @name(".netsum_address") action address(bit<48> to, bit<48> from, bit<32> to_address, bit<32> from_address, bit<16> to_port, bit<16> from_port) {
    ethernet.destination = to;
    ethernet.source = from;
    ipv4.destination = to_address;
    ipv4.source = from_address;
    ipv4.time_to_live = 64;
    udp.destination = to_port;
    udp.source = from_port;
    udp.checksum = 0;
  }
  action unaddressed() {}
  @name(".netsum_receivers") table receivers {
    key = { job : exact; replica : exact; }
    actions = { address; unaddressed; }
    const default_action = unaddressed();
    size = MAX_JOBS * MAX_MEMBERS;
  }
  apply { receivers.apply(); }
}

#endif
