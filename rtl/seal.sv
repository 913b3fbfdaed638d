// The seal of a sum (docs/protocol-netreduce.md): SplitMix64's finalizer over the ring's incarnation, the message, the place and
// the number of contributions. One multiplication a clock, eight in all.
module seal #(
    parameter int MB = 4  // bits of the number of contributions
) (
    input wire clock,
    input wire start,  // with the rest, which stays until it is ready
    input wire [63:0] incarnation,
    input wire [63:0] message,
    input wire [31:0] ring,
    input wire [31:0] packet,
    input wire [MB-1:0] contributions,
    output wire ready,
    output wire [63:0] value
);
  logic [3:0] step;  // behind the last it stays
  logic [63:0] digest;
  wire [63:0] many = {{(64 - MB) {1'b0}}, contributions};
  wire odd = step[0];
  // What is mixed in, in the first half of each of the four rounds.
  wire [63:0] more = step == 0 ? incarnation : step == 2 ? message : step == 4 ? {ring, packet} : many;
  wire [63:0] mixed_in = step == 0 ? more : digest + more;
  wire [63:0] factor = odd ? 64'h94d0_49bb_1331_11eb : 64'hbf58_476d_1ce4_e5b9;
  wire [63:0] term = odd ? digest ^ (digest >> 27) : mixed_in ^ (mixed_in >> 30);
  wire [63:0] product = term * factor;
  always_ff @(posedge clock) begin
    if (start) step <= 0;
    else if (!ready) begin
      step <= step + 1'b1;
      digest <= odd ? product ^ (product >> 31) : product;
    end
  end
  assign ready = step == 8;
  wire [63:0] word = {digest[63:16], many[15:0]};
  assign value = word != 0 ? word : 64'd1;
endmodule
