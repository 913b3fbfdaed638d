// The connection lookup table (§3.2): which connection is of which ring, and of which rank. Equal queue pair numbers on
// different hosts are the normal case, so the key has both addresses. Combinational.
module connection_table #(
    parameter int ENTRIES = 8,
    parameter int RB = 1,  // bits of a ring's number here
    parameter int LB = 2  // and of a rank
) (
    input wire clock,
    input wire reset,
    input wire set,
    input wire [$clog2(ENTRIES)-1:0] set_entry,
    input wire set_valid,
    input wire [127:0] set_source,
    input wire [127:0] set_destination,
    input wire [23:0] set_qp,
    input wire [RB-1:0] set_ring,
    input wire [LB-1:0] set_rank,
    input wire [127:0] source,
    input wire [127:0] destination,
    input wire [23:0] qp,
    output wire found,
    output wire [RB-1:0] ring,
    output wire [LB-1:0] rank
);
  wire [ENTRIES-1:0] equal;
  wire [(RB+LB)*ENTRIES-1:0] results;
  generate
    genvar i;
    for (i = 0; i < ENTRIES; i = i + 1) begin : entry
      logic valid;
      logic [279:0] key;
      logic [RB+LB-1:0] result;
      always_ff @(posedge clock) begin
        if (reset) valid <= 0;
        else if (set && set_entry == i) valid <= set_valid;
        if (set && set_entry == i) begin
          key <= {set_source, set_destination, set_qp};
          result <= {set_ring, set_rank};
        end
      end
      assign equal[i] = valid && key == {source, destination, qp};
      assign results[(RB+LB)*i+:RB+LB] = equal[i] ? result : {(RB + LB) {1'b0}};
    end
  endgenerate
  logic [RB+LB-1:0] result_of_all;
  always_comb begin
    result_of_all = 0;
    for (int e = 0; e < ENTRIES; e = e + 1) result_of_all = result_of_all | results[(RB+LB)*e+:RB+LB];
  end
  assign found = equal != 0;
  assign {ring, rank} = result_of_all;
endmodule
