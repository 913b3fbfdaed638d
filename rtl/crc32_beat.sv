// CRC-32 (the ICRC's, §4: "FPGA has better programmability to completely implement transport functions, e.g., ICRC") of 64 bytes
// at once: the state behind them, from the state before. Bit 0 of the first byte comes first.
module crc32_beat (
    input  wire [ 31:0] state_in,
    input  wire [511:0] data,
    output wire [ 31:0] state_out
);
  // The state is linear in the bits that come. Row k: those that bit k of the state depends on. A bit that comes i bits
  // before the end has been divided i + 1 times.
  function automatic [32*512-1:0] dependences(input int unused);
    logic [31:0] state;
    dependences = 0;
    state = 32'h1;
    for (int bit_ = 511; bit_ >= 0; bit_ = bit_ - 1) begin
      state = state[0] ? (state >> 1) ^ 32'hedb8_8320 : state >> 1;
      for (int k = 0; k < 32; k = k + 1) dependences[512*k+bit_] = state[k];
    end
  endfunction
  localparam logic [32*512-1:0] ROWS = dependences(0);

  wire [511:0] mixed = {data[511:32], data[31:0] ^ state_in};
  generate
    genvar k;
    for (k = 0; k < 32; k = k + 1) begin : row
      assign state_out[k] = ^(mixed & ROWS[512*k+:512]);
    end
  endgenerate
endmodule
