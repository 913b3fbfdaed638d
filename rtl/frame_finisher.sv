// Renews a sum's checksums: the ICRC, and UDP's where the frame has one (§3.2: hosts "would not perceive the data mutation" if the checksum is corrected).
// Both are known when the whole frame has been seen, so a frame is kept until then.
module frame_finisher #(
    parameter int BEATS = 32
) (
    input wire clock,
    input wire reset,
    input wire valid,
    output wire room,
    input wire [511:0] data,
    input wire last,
    input wire [7:0] beat,
    input wire made,
    input wire [1:0] tags,
    input wire v6,
    input wire [13:0] bytes,
    output logic tvalid,
    output wire [511:0] tdata,
    output wire [63:0] tkeep,
    output wire tlast,
    input wire tready
);
  localparam int BB = $clog2(BEATS);
  localparam int BANKS = 4;  // two would wait for each other between frames
  // ---- in

  logic [BANKS-1:0] full;
  logic [1:0] to;
  assign room = !full[to];
  wire take = valid && room;
  wire [13:0] covered = made ? bytes - 14'd4 : bytes;  // the ICRC is behind it
  logic [511:0] kept;
  always_comb for (int i = 0; i < 64; i = i + 1) kept[8*i+:8] = {beat, 6'd0} + i < covered ? data[8*i+:8] : 8'd0;
  wire [31:0] crc;
  icrc icrc_ (.clock(clock), .enable(take), .data(kept), .beat(beat), .tags(tags), .v6(v6), .covered(covered), .crc(crc));

  // Ones' complement sum of addresses, UDP header and payload, in the order of bytes of the wire; without the checksum itself.
  wire [7:0] ip_at = 8'd14 + {4'd0, tags, 2'b0};
  wire [7:0] udp_at = ip_at + (v6 ? 8'd40 : 8'd20);
  wire [7:0] addresses_at = ip_at + (v6 ? 8'd8 : 8'd12);
  wire [7:0] checksum_at = udp_at + 8'd6;
  logic [21:0] beat_sum;
  logic has_here;
  always_comb begin
    beat_sum = 0;
    has_here = 0;
    for (int i = 0; i < 32; i = i + 1) begin
      if ({beat, 6'd0} + 2 * i == checksum_at) has_here = kept[16*i+:16] != 0;
      else if ({beat, 6'd0} + 2 * i >= addresses_at) beat_sum = beat_sum + {kept[16*i+:8], kept[16*i+8+:8]};
    end
  end
  logic [31:0] sum;
  logic has, ended;
  logic [1:0] ended_to;
  logic [13:0] udp_bytes;
  wire [31:0] icrc_value = ~crc;
  wire [31:0] total = sum + {18'd0, udp_bytes} + 32'd17 + {16'd0, icrc_value[7:0], icrc_value[15:8]} + {16'd0, icrc_value[23:16], icrc_value[31:24]};
  wire [16:0] folded = {1'b0, total[15:0]} + {1'b0, total[31:16]};
  wire [15:0] checksum = ~(folded[15:0] + {15'd0, folded[16]});

  // Of each bank: what is put in when the frame leaves.
  logic [BANKS-1:0] renew, renew_udp;
  logic [31:0] icrcs[0:BANKS-1];
  logic [15:0] checksums[0:BANKS-1];
  logic [7:0] checksums_at[0:BANKS-1];
  logic [13:0] lengths[0:BANKS-1];

  // ---- out

  logic [1:0] from;
  logic [BB-1:0] next_beat;
  wire go = full[from] && (!tvalid || tready);
  wire [13:0] length = lengths[from];
  wire ends = {8'd0, next_beat} + 1'b1 == length[13:6] + {13'd0, length[5:0] != 0};
  wire [511:0] stored;
  ram #(.W(512), .DEPTH(BANKS * BEATS)) frames (
      .clock(clock), .write(take), .write_at({to, beat[BB-1:0]}), .write_data(kept), .read(go), .read_at({from, next_beat}),
      .read_data(stored));
  logic last_out, with_icrc, with_checksum;
  logic [31:0] icrc_out;
  logic [15:0] checksum_out;
  logic [7:0] checksum_out_at, beat_out;
  logic [13:0] length_out;
  wire [13:0] begins = {beat_out, 6'd0};
  wire [13:0] left = length_out - begins;
  wire [13:0] icrc_at = length_out - 14'd4;
  wire [1023:0] icrc_bits = {992'd0, icrc_out} << {icrc_at[5:0], 3'b0};
  wire [511:0] icrc_here = !with_icrc ? 512'd0 : icrc_at[13:6] == beat_out ? icrc_bits[511:0]
                         : icrc_at[13:6] + 1'b1 == beat_out ? icrc_bits[1023:512] : 512'd0;
  wire checksum_here = with_checksum && {6'd0, checksum_out_at[7:6]} == beat_out;
  wire [8:0] checksum_bit = {checksum_out_at[5:0], 3'b0};
  wire [511:0] checksum_mask = checksum_here ? {496'd0, {16{1'b1}}} << checksum_bit : 512'd0;
  assign tdata = (stored & ~checksum_mask) | icrc_here | (checksum_mask & ({496'd0, checksum_out[7:0], checksum_out[15:8]} << checksum_bit));
  assign tkeep = left >= 64 ? {64{1'b1}} : ~({64{1'b1}} << left[5:0]);
  assign tlast = last_out;

  always_ff @(posedge clock) begin
    if (take) begin
      sum <= (beat == 0 ? 32'd0 : sum) + {10'd0, beat_sum};
      has <= (beat != 0 && has) || has_here;
      udp_bytes <= bytes - {6'd0, udp_at};
      ended_to <= to;
      lengths[to] <= bytes;
      checksums_at[to] <= checksum_at;
      renew[to] <= made;
    end
    if (ended) begin
      icrcs[ended_to] <= icrc_value;
      checksums[ended_to] <= checksum == 0 ? 16'hffff : checksum;
      renew_udp[ended_to] <= has && renew[ended_to];
    end
    if (go) begin
      last_out <= ends;
      with_icrc <= renew[from];
      with_checksum <= renew_udp[from];
      icrc_out <= icrcs[from];
      checksum_out <= checksums[from];
      checksum_out_at <= checksums_at[from];
      beat_out <= next_beat;
      length_out <= length;
    end
    if (reset) begin
      full <= 0;
      to <= 0;
      from <= 0;
      next_beat <= 0;
      ended <= 0;
      tvalid <= 0;
    end else begin
      ended <= take && last;
      if (take && last) to <= to + 1'b1;
      if (ended) full[ended_to] <= 1;
      if (go) begin
        next_beat <= ends ? 0 : next_beat + 1'b1;
        if (ends) begin
          full[from] <= 0;
          from <= from + 1'b1;
        end
      end
      tvalid <= go || (tvalid && !tready);
    end
  end
endmodule
