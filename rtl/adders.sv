// Sixteen sums of float32 or int32 side by side (§4's aggregation; docs/numerics.md). `strange`: float sums that are not finite.
module adders (
    input wire int32,
    input wire [511:0] a,
    input wire [511:0] b,
    input wire alone,  // b is the first contribution: there is no a
    output wire [511:0] sum,
    output wire [15:0] strange
);
  generate
    genvar i;
    for (i = 0; i < 16; i = i + 1) begin : lane
      wire [31:0] added, x, y;
      assign x = a[32*i+:32];
      assign y = b[32*i+:32];
      fp_add add (.a(x), .b(y), .sum(added));
      assign sum[32*i+:32] = alone ? y : int32 ? x + y : added;
      assign strange[i] = !int32 && sum[32*i+23+:8] == 8'hff;
    end
  endgenerate
endmodule
