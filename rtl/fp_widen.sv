// The double of a float32: exact.
module fp_widen (
    input  wire [31:0] narrow,
    output wire [63:0] wide
);
  wire [7:0] exponent = narrow[30:23];
  logic [4:0] zeros;  // in front of a subnormal number's first digit
  always_comb begin
    zeros = 0;
    for (int i = 0; i < 23; i = i + 1) if (narrow[i]) zeros = 22 - i;
  end
  wire [23:0] normalized = {narrow[22:0], 1'b0} << zeros;
  wire [10:0] subnormal_exponent = 11'd896 - {6'd0, zeros};
  wire special = exponent == 8'hff;
  wire subnormal = exponent == 0;
  wire zero = narrow[30:0] == 0;
  assign wide = zero ? {narrow[31], 63'd0}
              : subnormal ? {narrow[31], subnormal_exponent, normalized[22:0], 29'd0}
              : {narrow[31], special ? 11'h7ff : {3'd0, exponent} + 11'd896, narrow[22:0], 29'd0};
endmodule
