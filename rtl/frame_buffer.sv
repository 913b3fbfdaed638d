// Frames that have come, a bank each: two adjacent beats for the history's writer, one for the combinator, and for each the
// first 192 bytes at once.
module frame_buffer #(
    parameter int BANKS = 4,
    parameter int BEATS = 32
) (
    input wire clock,
    input wire write,
    input wire [$clog2(BANKS)-1:0] write_bank,
    input wire [$clog2(BEATS)-1:0] write_beat,
    input wire [511:0] write_data,
    input wire pair_read,
    input wire [$clog2(BANKS)-1:0] pair_bank,
    input wire [$clog2(BEATS)-1:0] pair_beat,
    output wire [1023:0] pair,  // this beat and the next one
    output wire [1535:0] pair_head,
    input wire read,
    input wire [$clog2(BANKS)-1:0] read_bank,
    input wire [$clog2(BEATS)-1:0] read_beat,
    output wire [511:0] data,
    output wire [1535:0] head
);
  localparam int BB = $clog2(BEATS);
  wire [511:0] even, odd;
  wire [BB-1:0] pair_next = pair_beat + 1'b1;
  logic pair_odd;
  always_ff @(posedge clock) if (pair_read) pair_odd <= pair_beat[0];
  ram #(.W(512), .DEPTH(BANKS * BEATS / 2)) evens (
      .clock(clock), .write(write && !write_beat[0]), .write_at({write_bank, write_beat[BB-1:1]}), .write_data(write_data),
      .read(pair_read), .read_at({pair_bank, pair_next[BB-1:1]}), .read_data(even));
  ram #(.W(512), .DEPTH(BANKS * BEATS / 2)) odds (
      .clock(clock), .write(write && write_beat[0]), .write_at({write_bank, write_beat[BB-1:1]}), .write_data(write_data),
      .read(pair_read), .read_at({pair_bank, pair_beat[BB-1:1]}), .read_data(odd));
  assign pair = pair_odd ? {even, odd} : {odd, even};
  ram #(.W(512), .DEPTH(BANKS * BEATS)) all (
      .clock(clock), .write(write), .write_at({write_bank, write_beat}), .write_data(write_data),
      .read(read), .read_at({read_bank, read_beat}), .read_data(data));
  generate
    genvar i;
    for (i = 0; i < 3; i = i + 1) begin : part
      wire here = write && write_beat == i;
      ram #(.W(512), .DEPTH(BANKS)) for_pairs (
          .clock(clock), .write(here), .write_at(write_bank), .write_data(write_data),
          .read(pair_read), .read_at(pair_bank), .read_data(pair_head[512*i+:512]));
      ram #(.W(512), .DEPTH(BANKS)) for_data (
          .clock(clock), .write(here), .write_at(write_bank), .write_data(write_data),
          .read(read), .read_at(read_bank), .read_data(head[512*i+:512]));
    end
  endgenerate
endmodule
