// What both programs and the control plane (src/dataplane/bmv2) agree about. docs/protocol-switchml-chip.md has the packets and
// the rule of a slot.
#ifndef NETSUM_CONSTANTS_P4
#define NETSUM_CONSTANTS_P4

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<8> PROTOCOL_UDP = 17;

const bit<8> CHIP_FORMAT = 0xc1;
const bit<8> CHIP_CONTRIBUTION = 1;
const bit<8> CHIP_RESULT = 2;
const bit<8> CHIP_UNKNOWN_JOB = 3;  // the header alone, turned around
const bit<16> CHIP_UNKNOWN_EXPONENT = 256;

// Of a datagram, with UDP's header.
const bit<16> LENGTH_OF_64 = 8 + 48 + 64 * 4;
const bit<16> LENGTH_OF_256 = 8 + 48 + 256 * 4;
const bit<16> LENGTH_OF_NONE = 8 + 48;

const bit<32> ACCEPTED = 0x80000000;  // always set in a bitmap, and so in what a gate says of a packet

// What a packet's pass through the pipeline is for.
const bit<8> PASS_CONSUME = 0;  // the first ones: one for each 64 elements, in order; each takes its elements from the packet
const bit<8> PASS_ANSWER = 1;   // the others: one for each 64 elements, the last ones first; each puts them in front

// Registers: an entry is 64 elements of one version of one slot.
#define REGISTER_ENTRIES 8192
#ifndef ENTRY_BITS
#define ENTRY_BITS 32  // of an entry's number
#endif
#define MAX_JOBS 256
#define MAX_MEMBERS 31

// What became of a packet, by job. All but UNKNOWN are counted in its last pass. Neither program names all
// of them.
#define OUTCOMES_OF_A_JOB 16
const bit<32> OUTCOME_CONTRIBUTION = 0;  // its elements were added, and that was all
@noWarn("unused") const bit<32> OUTCOME_COMPLETED = 1;     // they were added, and its round was complete
const bit<32> OUTCOME_SILENT = 2;        // a repeat of a round that is not complete
const bit<32> OUTCOME_OLD = 3;
@noWarn("unused") const bit<32> OUTCOME_EARLY = 4;
@noWarn("unused") const bit<32> OUTCOME_SLOT = 5;
@noWarn("unused") const bit<32> OUTCOME_SHAPE = 6;
@noWarn("unused") const bit<32> OUTCOME_SENT_TO_ALL = 7;
@noWarn("unused") const bit<32> OUTCOME_ANSWERED = 8;
@noWarn("unused") const bit<32> OUTCOME_ARRIVED = 9;  // every packet of the job: in its first pass

#endif
