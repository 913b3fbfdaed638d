// Adds two IEEE 754 numbers as C++ does: rounded to nearest, ties to even, with subnormal numbers. A NaN is the quiet one
// without payload. E and M: bits of exponent and mantissa; 8 and 23 are float32, 11 and 52 double.
module fp_add #(
    parameter int E = 8,
    parameter int M = 23
) (
    input  wire [E+M:0] a,
    input  wire [E+M:0] b,
    output wire [E+M:0] sum
);
  localparam int W = M + 4;  // hidden bit, mantissa, and guard, round and sticky bits
  localparam logic [E-1:0] TOP = {E{1'b1}};

  // x has the larger magnitude.
  wire swap = b[E+M-1:0] > a[E+M-1:0];
  wire [E+M:0] x = swap ? b : a;
  wire [E+M:0] y = swap ? a : b;
  wire [E-1:0] x_field = x[E+M-1:M];
  wire [E-1:0] y_field = y[E+M-1:M];
  // Subnormal numbers have the least exponent, and no hidden bit.
  wire [E-1:0] x_exponent = x_field == 0 ? 1 : x_field;
  wire [E-1:0] y_exponent = y_field == 0 ? 1 : y_field;
  wire [W-1:0] x_digits = {x_field != 0, x[M-1:0], 3'b0};
  wire [W-1:0] y_digits = {y_field != 0, y[M-1:0], 3'b0};

  // What is shifted out leaves a trace in the sticky bit.
  wire [E-1:0] distance = x_exponent - y_exponent;
  wire [W-1:0] lost = distance >= W ? {W{1'b1}} : ~({W{1'b1}} << distance);
  wire [W-1:0] y_shifted = (distance >= W ? {W{1'b0}} : y_digits >> distance) | {{(W - 1) {1'b0}}, |(y_digits & lost)};
  wire subtract = x[E+M] ^ y[E+M];
  wire [W:0] total = subtract ? {1'b0, x_digits} - {1'b0, y_shifted} : {1'b0, x_digits} + {1'b0, y_shifted};

  // To the left until the hidden bit is there, or the exponent the least.
  logic [E-1:0] zeros;
  always_comb begin
    zeros = 0;
    for (int i = 0; i < W; i = i + 1) if (total[i]) zeros = W - 1 - i;
  end
  wire [E-1:0] left = zeros < x_exponent ? zeros : x_exponent - 1'b1;
  wire carry = total[W];
  wire [W-1:0] digits = carry ? {total[W:2], |total[1:0]} : total[W-1:0] << left;
  wire [E-1:0] exponent = carry ? x_exponent + 1'b1 : x_exponent - left;

  // A mantissa that is rounded up to the next power of two carries into the exponent.
  wire up = digits[2] & (|digits[1:0] | digits[3]);
  wire [E+M-1:0] rounded = {digits[W-1] ? exponent : {E{1'b0}}, digits[W-2:3]} + {{(E + M - 1) {1'b0}}, up};

  wire nan = (x_field == TOP && x[M-1:0] != 0) || (y_field == TOP && (y[M-1:0] != 0 || subtract));
  wire infinite = x_field == TOP || rounded[E+M-1:M] == TOP;
  wire zero = total == 0;
  wire sign = zero ? a[E+M] & b[E+M] : x[E+M];
  assign sum = nan ? {1'b0, TOP, 1'b1, {(M - 1) {1'b0}}}
             : infinite ? {x[E+M], TOP, {M{1'b0}}}
             : {sign, zero ? {(E + M) {1'b0}} : rounded};
endmodule
