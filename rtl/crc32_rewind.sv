// The CRC-32 before its last `bytes` bytes, which were zeros: so a beat that is not full is fed with zeros behind.
module crc32_rewind (
    input  wire [31:0] state_in,
    input  wire [ 5:0] bytes,
    output wire [31:0] state_out
);
  // Undoes 8 * 2^step divisions. Row k: what bit k depends on.
  function automatic [1023:0] undone(input int step);
    logic [31:0] state;
    undone = 0;
    for (int bit_ = 0; bit_ < 32; bit_ = bit_ + 1) begin
      state = 32'h1 << bit_;
      for (int i = 0; i < (8 << step); i = i + 1)
        state = state[31] ? ((state ^ 32'hedb8_8320) << 1) | 32'h1 : state << 1;
      for (int k = 0; k < 32; k = k + 1) undone[32*k+bit_] = state[k];
    end
  endfunction

  generate
    genvar step, k;
    for (step = 0; step < 6; step = step + 1) begin : halving
      localparam logic [1023:0] ROWS = undone(step);
      wire [31:0] taken, rewound, kept;
      if (step == 0) assign taken = state_in;
      else assign taken = halving[step-1].kept;
      for (k = 0; k < 32; k = k + 1) begin : row
        assign rewound[k] = ^(taken & ROWS[32*k+:32]);
      end
      assign kept = bytes[step] ? rewound : taken;
    end
  endgenerate
  assign state_out = halving[5].kept;
endmodule
