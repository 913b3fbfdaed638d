// The parts of the accelerator that compute, side by side, for tests.
module units (
    input wire clock,
    input wire [31:0] a,
    input wire [31:0] b,
    output wire [31:0] sum,
    input wire [63:0] wide_a,
    input wire [63:0] wide_b,
    output wire [63:0] wide_sum,
    output wire [31:0] narrow_a,
    output wire [63:0] widened_a,
    input wire enable,
    input wire [511:0] data,
    input wire [7:0] beat,
    input wire [1:0] tags,
    input wire v6,
    input wire [13:0] covered,
    output wire [31:0] crc
);
  fp_add #(.E(8), .M(23)) add (.a(a), .b(b), .sum(sum));
  fp_add #(.E(11), .M(52)) add_wide (.a(wide_a), .b(wide_b), .sum(wide_sum));
  fp_narrow narrow_it (.wide(wide_a), .narrow(narrow_a));
  fp_widen widen_it (.narrow(a), .wide(widened_a));
  icrc icrc_ (.clock(clock), .enable(enable), .data(data), .beat(beat), .tags(tags), .v6(v6), .covered(covered), .crc(crc));
endmodule
