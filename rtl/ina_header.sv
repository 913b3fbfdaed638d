// Reads the INA header in front of a message (Fig. 4), in one of two layouts: netsum's with seals, or `nrtv`, that of the
// recorded rings (docs/protocol-netreduce.md). Combinational.
module ina_header (
    input wire nrtv,
    input wire ring_int32,  // the values of rings whose header does not say
    input wire [319:0] beginning,  // of the message
    input wire [13:0] payload_bytes,
    input wire [63:0] next_message,  // of the ring: message numbers of 32 bits are near it
    output wire right,
    output wire [31:0] ring,
    output wire [31:0] rank,
    output wire [63:0] message,
    output wire [31:0] packets,
    output wire [31:0] signature,
    output wire int32
);
  wire [31:0] forward = beginning[8*8+:32] - next_message[31:0];
  wire back = forward[31] && next_message >= 64'h1_0000_0000 - {32'd0, forward};
  wire [63:0] extended = next_message + {32'd0, forward} - {31'd0, back, 32'd0};
  wire [7:0] dtype = beginning[8*12+:8];
  // Values of 16 bits and averages are not added here.
  assign right = nrtv ? payload_bytes >= 16 && beginning[0+:32] == "vtRN"
                      : payload_bytes >= 40 && beginning[8*8+:32] == "rnSN" && dtype <= 1 && beginning[8*13+:8] == 0;
  assign ring = nrtv ? {16'd0, beginning[8*4+:16]} : beginning[8*16+:32];
  assign rank = nrtv ? {16'd0, beginning[8*6+:16]} : beginning[8*20+:32];
  assign message = nrtv ? extended : beginning[8*24+:64];
  assign packets = nrtv ? beginning[8*12+:32] : {16'd0, beginning[8*14+:16]};
  assign signature = nrtv ? 32'd0 : beginning[8*32+:32];
  assign int32 = nrtv ? ring_int32 : dtype[0];
endmodule
