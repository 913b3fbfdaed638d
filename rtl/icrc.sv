// The invariant CRC of a frame that comes beat by beat: over its IP packet, up to `covered`, with the fields that routers may
// change as ones, behind eight bytes of ones (InfiniBand, Annex A17.3.3). The result is there in the clock after the last
// beat, without the final inversion: over a whole packet, ICRC included, it is `RESIDUE` if the ICRC is right.
module icrc (
    input wire clock,
    input wire enable,  // a beat is there
    input wire [511:0] data,
    input wire [7:0] beat,  // its number in the frame
    input wire [1:0] tags,  // VLAN tags: the IP packet begins at 14 + 4 * tags
    input wire v6,
    input wire [13:0] covered,  // the end of what the CRC covers, in bytes of the frame
    output wire [31:0] crc
);
  localparam logic [31:0] BEGIN = 32'h2144_df1c ^ 32'hffff_ffff;  // behind eight bytes of ones

  // Masks from the IP header on: a bit for each byte. The first byte of IPv6 has the version in its upper half.
  localparam logic [63:0] MASK_V4 = 64'h1 << 1 | 64'h1 << 8 | 64'h3 << 10 | 64'h3 << 26 | 64'h1 << 32;
  localparam logic [63:0] MASK_V6 = 64'he | 64'h1 << 7 | 64'h3 << 46 | 64'h1 << 52;

  wire [4:0] ip_at = 5'd14 + {1'b0, tags, 2'b0};
  wire [127:0] mask = {64'd0, v6 ? MASK_V6 : MASK_V4} << ip_at;
  wire [63:0] mask_here = beat == 0 ? mask[63:0] : beat == 1 ? mask[127:64] : 64'd0;
  wire [13:0] begins = {beat, 6'd0};
  wire [13:0] left = covered - begins;
  wire any = covered > begins;
  wire whole = left >= 64;
  wire [63:0] covers_end = whole ? {64{1'b1}} : ~({64{1'b1}} << left[5:0]);
  wire [63:0] covers = beat == 0 ? covers_end & ({64{1'b1}} << ip_at) : covers_end;
  // The CRC of what comes behind a state is that of zeros before it, and of it with the state added to its first bytes.
  wire [511:0] start = beat == 0 ? {480'd0, BEGIN} << {ip_at, 3'b0} : 512'd0;
  logic [511:0] masked;
  always_comb begin
    for (int i = 0; i < 64; i = i + 1) masked[8*i+:8] = (data[8*i+:8] | {8{mask_here[i]}}) & {8{covers[i]}};
    if (v6 && beat == 0) masked[8*ip_at+:4] = 4'hf;
  end

  logic [31:0] state;
  logic [5:0] beyond;
  wire [31:0] next;
  crc32_beat divide (
      .state_in(beat == 0 ? 32'd0 : state),
      .data(masked ^ start),
      .state_out(next)
  );
  always_ff @(posedge clock) begin
    if (enable && any) begin
      state  <= next;
      beyond <= whole ? 6'd0 : -left[5:0];
    end
  end
  crc32_rewind rewind_ (
      .state_in(state),
      .bytes(beyond),
      .state_out(crc)
  );
endmodule
