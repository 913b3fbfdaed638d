// Puts headers and sums together (§4: "Combinator merges the header with the payload and sends the final packet out"): a sum
// leaves once for each rank, behind that rank's own headers; a repeat is answered behind the repeat's; other frames leave as
// they came.
module combinator #(
    parameter int BANKS = 4,
    parameter int BEATS = 32,
    parameter int AB = 7,
    parameter int LB = 2,
    parameter int VB = 4
) (
    input wire clock,
    input wire reset,
    input wire job,
    output wire job_taken,
    input wire [1:0] kind,
    input wire [$clog2(BANKS)-1:0] bank,
    input wire [AB-1:0] aggregator,
    input wire [LB:0] members,
    input wire [10:0] geometry,  // of the frame that came: VLAN tags, IPv6, where its values begin
    input wire [5:0] skip,
    input wire [13:0] values,
    input wire seals,
    input wire [63:0] seal,
    input wire [13:0] frame_bytes,
    // The frame that came.
    output wire frame_read,
    output wire [$clog2(BEATS)-1:0] frame_beat,
    input wire [511:0] frame_data,
    input wire [1535:0] frame_head,
    output wire [BANKS-1:0] released,
    // The header buffer.
    output wire head_read,
    output wire [AB+LB-1:0] head_at,
    input wire [1151:0] head_data,
    input wire [10:0] head_geometry,  // at head_at, at once
    // The sums.
    output wire sum_read,
    output wire [AB+VB-1:0] sum_at,
    input wire [511:0] sum_data,
    output wire done,  // with the sums
    // The frame that leaves.
    input wire room,
    output logic valid,
    output wire [511:0] data,
    output logic last,
    output logic [7:0] beat,
    output logic made,  // a sum, whose checksums are not there yet
    output logic [1:0] tags,
    output logic v6,
    output logic [13:0] bytes
);
  localparam logic [1:0] PASS = 0, SUM = 2;
  logic [LB:0] rank;
  logic [7:0] i;
  wire passes = kind == PASS;
  wire [10:0] shape = kind == SUM ? head_geometry : geometry;
  wire [7:0] begins = shape[7:0];
  wire [13:0] all_bytes = passes ? frame_bytes : {6'd0, begins} + values + 14'd4;
  wire [7:0] all_beats = all_bytes[13:6] + {7'd0, all_bytes[5:0] != 0};
  wire ends = i + 1'b1 == all_beats;
  wire whole = ends && (kind != SUM || rank + 1'b1 == members);
  wire go = job && room;
  assign job_taken = go && whole;
  assign frame_read = go && kind != SUM;
  assign frame_beat = i;
  assign head_read = go && kind == SUM && i == 0;
  assign head_at = {aggregator, rank[LB-1:0]};
  wire [7:0] value_beat = i - {6'd0, begins[7:6]};
  assign sum_read = go && !passes;
  assign sum_at = {aggregator, value_beat[VB-1:0]};
  assign released = job_taken && kind != SUM ? {{(BANKS - 1) {1'b0}}, 1'b1} << bank : {BANKS{1'b0}};
  assign done = job_taken && !passes;

  // In the clock behind: what was read. The beats of sums lie across those of the frame.
  logic [1:0] kind_read;
  logic [7:0] begins_read;
  logic [5:0] skip_read;
  logic seals_read;
  logic [63:0] seal_read;
  logic [511:0] sum_before;
  wire [1151:0] headers = kind_read == SUM ? head_data : frame_head[1151:0];
  wire [10:0] seal_at = {begins_read - {2'd0, skip_read}, 3'b0};
  wire [1151:0] sealed = seals_read ? (headers & ~({1088'd0, {64{1'b1}}} << seal_at)) | ({1088'd0, seal_read} << seal_at) : headers;
  wire [511:0] header_beat = beat == 0 ? sealed[511:0] : beat == 1 ? sealed[1023:512] : {384'd0, sealed[1151:1024]};
  wire [8:0] shift = {begins_read[5:0], 3'b0};
  wire [511:0] low = ~({512{1'b1}} << shift);
  wire [1023:0] across = {sum_data, sum_before} << shift;
  wire before_values = beat < {6'd0, begins_read[7:6]};
  wire at_values = beat == {6'd0, begins_read[7:6]};
  assign data = kind_read == PASS ? frame_data : before_values ? header_beat
              : at_values ? (header_beat & low) | (sum_data << shift) : across[1023:512];
  always_ff @(posedge clock) begin
    if (room) begin
      last <= ends;
      beat <= i;
      made <= !passes;
      {tags, v6} <= shape[10:8];
      bytes <= all_bytes;
      kind_read <= kind;
      begins_read <= begins;
      skip_read <= skip;
      seals_read <= seals;
      seal_read <= seal;
      sum_before <= sum_data;
    end
    if (reset) begin
      valid <= 0;
      rank <= 0;
      i <= 0;
    end else if (room) begin
      valid <= job;
      if (job) i <= ends ? 0 : i + 1'b1;
      if (job && ends) rank <= whole ? 0 : rank + 1'b1;
    end
  end
endmodule
