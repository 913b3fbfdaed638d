// Takes frames in, whole, before anything is decided: a damaged packet must not enter, since it would leave with a right ICRC.
// Each frame leaves a description, in order.
module frame_receiver #(
    parameter int BANKS = 4,
    parameter int BEATS = 32
) (
    input wire clock,
    input wire reset,
    input wire tvalid,
    input wire [511:0] tdata,
    input wire [63:0] tkeep,
    input wire tlast,
    output wire tready,
    // To the frame buffer.
    output wire write,
    output wire [$clog2(BANKS)-1:0] write_bank,
    output wire [$clog2(BEATS)-1:0] write_beat,
    input wire [BANKS-1:0] released,
    // A frame has come.
    output logic arrived,
    output logic [$clog2(BANKS)-1:0] bank,
    output logic [13:0] frame_bytes,
    output logic roce,
    output logic glimpsed,
    output logic [1:0] tags,
    output logic v6,
    output logic [13:0] ip_bytes,
    output logic [127:0] source,
    output logic [127:0] destination,
    output logic [23:0] qp,
    output logic [23:0] psn,
    output logic request,
    output logic first,
    output logic last,
    output logic [7:0] payload_at,
    output logic [13:0] payload_bytes,
    output logic [319:0] beginning,
    output logic icrc_right,
    output logic too_long  // a frame was dropped
);
  localparam int NB = $clog2(BANKS);
  localparam logic [31:0] RESIDUE = 32'hdebb_20e3;
  logic [BANKS-1:0] used;
  logic [NB-1:0] free_bank, current;
  always_comb begin
    free_bank = 0;
    for (int i = BANKS - 1; i >= 0; i = i - 1) if (!used[i]) free_bank = i;
  end
  logic receiving;
  logic [7:0] beat;  // stays at the highest
  wire accept = tvalid && tready;
  assign tready = receiving || used != {BANKS{1'b1}};
  assign write_bank = receiving ? current : free_bank;
  assign write_beat = beat[$clog2(BEATS)-1:0];
  assign write = accept && beat < BEATS;

  logic [6:0] kept;
  always_comb begin
    kept = 0;
    for (int i = 0; i < 64; i = i + 1) if (tkeep[i]) kept = i + 1;
  end

  logic [1535:0] head;
  logic ended;  // a frame, in the clock before
  logic [13:0] bytes;
  logic overflown;
  logic [NB-1:0] ended_bank;

  // Ends and versions are known from the first beat on.
  wire [1535:0] head_now = beat == 0 ? {1024'd0, tdata} : head;
  wire now_roce, now_glimpsed, now_v6, now_request, now_first, now_last;
  wire [1:0] now_tags;
  wire [13:0] now_ip_bytes, now_payload_bytes;
  wire [127:0] now_source, now_destination;
  wire [23:0] now_qp, now_psn;
  wire [7:0] now_payload_at;
  wire [319:0] now_beginning;
  roce_parser parser (
      .head(head), .frame_bytes(bytes), .roce(now_roce), .glimpsed(now_glimpsed), .tags(now_tags), .v6(now_v6), .ip_bytes(now_ip_bytes),
      .source(now_source), .destination(now_destination), .qp(now_qp), .psn(now_psn), .request(now_request), .first(now_first),
      .last(now_last), .payload_at(now_payload_at), .payload_bytes(now_payload_bytes), .beginning(now_beginning));

  // The same as the parser's, from the first beat.
  function automatic is_tag(input [15:0] bytes_);
    is_tag = bytes_ == 16'h0081 || bytes_ == 16'ha888;
  endfunction
  wire tag0 = is_tag(head_now[8*12+:16]);
  wire tag1 = tag0 && is_tag(head_now[8*16+:16]);
  wire [1:0] early_tags = {tag1, tag0 && !tag1};
  wire [47:0] early_ip = tag1 ? head_now[8*22+:48] : tag0 ? head_now[8*18+:48] : head_now[8*14+:48];
  wire early_v6 = early_ip[7:4] == 6;
  wire [13:0] early_end = 14'd14 + {10'd0, early_tags, 2'b0} +
      (early_v6 ? {early_ip[37:32], early_ip[47:40]} + 14'd40 : {early_ip[21:16], early_ip[31:24]});
  wire [31:0] crc;
  icrc check (
      .clock(clock), .enable(accept), .data(tdata), .beat(beat), .tags(early_tags), .v6(early_v6), .covered(early_end), .crc(crc));

  always_ff @(posedge clock) begin
    if (accept) begin
      if (beat < 3) head[512*beat+:512] <= tdata;
      bytes <= {beat, 6'd0} + {7'd0, kept};
      overflown <= beat >= BEATS;
      ended_bank <= write_bank;
      current <= write_bank;
    end
    too_long <= ended && overflown;
    bank <= ended_bank;
    frame_bytes <= bytes;
    roce <= now_roce;
    glimpsed <= now_glimpsed;
    tags <= now_tags;
    v6 <= now_v6;
    ip_bytes <= now_ip_bytes;
    source <= now_source;
    destination <= now_destination;
    qp <= now_qp;
    psn <= now_psn;
    request <= now_request;
    first <= now_first;
    last <= now_last;
    payload_at <= now_payload_at;
    payload_bytes <= now_payload_bytes;
    beginning <= now_beginning;
    icrc_right <= crc == RESIDUE;
    if (reset) begin
      used <= 0;
      receiving <= 0;
      beat <= 0;
      ended <= 0;
      arrived <= 0;
    end else begin
      used <= (used & ~released & ~(ended && overflown ? {{(BANKS - 1) {1'b0}}, 1'b1} << ended_bank : {BANKS{1'b0}})) |
              (accept && !receiving ? {{(BANKS - 1) {1'b0}}, 1'b1} << free_bank : {BANKS{1'b0}});
      ended <= accept && tlast;
      arrived <= ended && !overflown;
      if (accept) begin
        receiving <= !tlast;
        beat <= tlast ? 8'd0 : beat == 8'hff ? beat : beat + 1'b1;
      end
    end
  end
endmodule
