// A memory with a port to write and one to read, as FPGAs have them: what is read is there in the next clock.
module ram #(
    parameter int W = 512,
    parameter int DEPTH = 256
) (
    input wire clock,
    input wire write,
    input wire [$clog2(DEPTH)-1:0] write_at,
    input wire [W-1:0] write_data,
    input wire read,
    input wire [$clog2(DEPTH)-1:0] read_at,
    output logic [W-1:0] read_data
);
  logic [W-1:0] words[0:DEPTH-1];
  always_ff @(posedge clock) begin
    if (write) words[write_at] <= write_data;
    if (read) read_data <= words[read_at];
  end
endmodule
