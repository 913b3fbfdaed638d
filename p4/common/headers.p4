// Headers of the packets that netsum's switch parses; of others it sees Ethernet alone.
#ifndef NETSUM_HEADERS_P4
#define NETSUM_HEADERS_P4

header ethernet_t {
  bit<48> destination;
  bit<48> source;
  bit<16> ether_type;
}

header ipv4_t {
  bit<4> version;
  bit<4> words;
  bit<8> service;
  bit<16> length;
  bit<16> id;
  bit<3> flags;
  bit<13> fragment;
  bit<8> time_to_live;
  bit<8> protocol;
  bit<16> checksum;
  bit<32> source;
  bit<32> destination;
}

header udp_t {
  bit<16> source;
  bit<16> destination;
  bit<16> length;
  bit<16> checksum;
}

// 48 bytes. What is only echoed is one field.
header chip_t {
  bit<8> format;
  bit<8> packet_type;
  bit<8> member;
  bit<7> reserved;
  bit<1> version;
  bit<16> slot;
  bit<16> rank;
  bit<64> job_epoch;  // little-endian, but it is compared alone
  bit<32> round;
  bit<16> exponent;
  bit<16> second_exponent;
  bit<64> operation;
  bit<32> chunk;
  bit<32> signature;
  bit<32> ahead_chunk;
  bit<16> ahead_operation;
  bit<16> kind;
}

// 32 of the 64 elements that one pass sums: a packet has the lower ones first. Two words with one number share a register.
header half_t {
  bit<32> w00; bit<32> w01; bit<32> w02; bit<32> w03; bit<32> w04; bit<32> w05; bit<32> w06; bit<32> w07;
  bit<32> w08; bit<32> w09; bit<32> w10; bit<32> w11; bit<32> w12; bit<32> w13; bit<32> w14; bit<32> w15;
  bit<32> w16; bit<32> w17; bit<32> w18; bit<32> w19; bit<32> w20; bit<32> w21; bit<32> w22; bit<32> w23;
  bit<32> w24; bit<32> w25; bit<32> w26; bit<32> w27; bit<32> w28; bit<32> w29; bit<32> w30; bit<32> w31;
}

// One statement for each of a half's words: W is a macro of its number.
#define EACH_WORD(W) \
  W(00) W(01) W(02) W(03) W(04) W(05) W(06) W(07) W(08) W(09) W(10) W(11) W(12) W(13) W(14) W(15) \
  W(16) W(17) W(18) W(19) W(20) W(21) W(22) W(23) W(24) W(25) W(26) W(27) W(28) W(29) W(30) W(31)

#endif
