// A queue. What was put in front can be seen before it is taken.
module fifo #(
    parameter int W = 8,
    parameter int DEPTH = 4
) (
    input wire clock,
    input wire reset,
    input wire put,
    input wire [W-1:0] in,
    output wire room,
    input wire take,
    output wire [W-1:0] out,
    output wire any
);
  localparam int B = $clog2(DEPTH);
  logic [W-1:0] words[0:DEPTH-1];
  logic [B:0] first, behind;
  assign any = first != behind;
  assign room = behind != {~first[B], first[B-1:0]};
  assign out = words[first[B-1:0]];
  always_ff @(posedge clock) begin
    if (put) words[behind[B-1:0]] <= in;
    if (reset) begin
      first  <= 0;
      behind <= 0;
    end else begin
      first  <= first + {{B{1'b0}}, take};
      behind <= behind + {{B{1'b0}}, put};
    end
  end
endmodule
