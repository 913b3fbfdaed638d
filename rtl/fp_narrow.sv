// The nearest float32 of a double, ties to even, as C++'s conversion; a NaN is the quiet one without payload.
module fp_narrow (
    input  wire [63:0] wide,
    output wire [31:0] narrow
);
  localparam int REBIAS = 1023 - 127;
  wire [10:0] exponent = wide[62:52];
  wire [52:0] digits = {exponent != 0, wide[51:0]};
  // Of a subnormal float32, one digit more is lost for each exponent below the least.
  wire subnormal = exponent <= REBIAS;
  wire [10:0] below = REBIAS + 1 - exponent;
  wire [5:0] extra = !subnormal ? 0 : below > 25 ? 25 : below[5:0];
  wire [53:0] shifted = {1'b0, digits} >> extra;
  wire [53:0] lost = ~({54{1'b1}} << extra);
  wire sticky = |shifted[27:0] | |({1'b0, digits} & lost);
  wire up = shifted[28] & (sticky | shifted[29]);
  wire [7:0] field = subnormal ? 8'd0 : exponent[7:0] - REBIAS[7:0];
  wire [30:0] rounded = {field, shifted[51:29]} + {30'd0, up};
  // Subnormal: the hidden bit is among the digits that are kept only if it was not shifted, and it always is.
  wire too_large = exponent >= REBIAS + 255;
  wire nan = exponent == 11'h7ff && wide[51:0] != 0;
  assign narrow = nan ? 32'h7fc0_0000 : {wide[63], too_large ? 31'h7f80_0000 : rounded};
endmodule
