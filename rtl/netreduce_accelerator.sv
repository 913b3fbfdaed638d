// NetReduce's accelerator (§3.1, §3.2, Fig. 8): a bump in the wire between hosts that form rings of RoCEv2 connections. It adds
// gradient packets over the connections of their ring, and forwards each with the sum in place of its values. Everything else
// passes. Frames come and leave by AXI-Stream, 64 bytes a clock. docs/data-planes.md says what it does not do.
//
// Stages, each of which works on another frame:
//   receiver, parser -> state manager -> history writer -> sum engine -> combinator -> finisher
module netreduce_accelerator #(
    parameter int RINGS = 2,
    parameter int RANKS = 4,  // of a ring; these and the next are powers of two, and at least 2
    parameter int SLOTS = 8,  // messages with aggregators, 2N at most
    parameter int PACKETS = 16,  // of a message, at most
    parameter int MTU = 1024,
    parameter int BEATS = 32,  // of a frame, at most
    parameter int BANKS = 4,  // frames that are inside
    parameter int RB = RINGS > 1 ? $clog2(RINGS) : 1,
    parameter int LB = $clog2(RANKS),
    parameter int SB = $clog2(SLOTS),
    parameter int PB = $clog2(PACKETS)
) (
    input wire clock,
    input wire reset,
    input wire s_axis_tvalid,
    input wire [511:0] s_axis_tdata,
    input wire [63:0] s_axis_tkeep,
    input wire s_axis_tlast,
    output wire s_axis_tready,
    output wire m_axis_tvalid,
    output wire [511:0] m_axis_tdata,
    output wire [63:0] m_axis_tkeep,
    output wire m_axis_tlast,
    input wire m_axis_tready,
    // Configuration: connections (addresses as IPv6 has them) and rings.
    input wire set_connection,
    input wire [$clog2(RINGS*RANKS)-1:0] connection_entry,
    input wire connection_valid,
    input wire [127:0] connection_source,
    input wire [127:0] connection_destination,
    input wire [23:0] connection_qp,
    input wire [RB-1:0] connection_ring,
    input wire [LB-1:0] connection_rank,
    input wire set_ring,
    input wire [RB-1:0] ring_number,
    input wire [31:0] ring_id,
    input wire [LB:0] ring_members,
    input wire [SB:0] ring_slots,
    input wire [PB:0] ring_packets,
    input wire [13:0] ring_mtu,
    input wire ring_nrtv,
    input wire ring_int32,
    input wire [63:0] ring_incarnation,
    input wire [RB+4:0] counter,
    output wire [31:0] counter_value
);
  localparam int NB = $clog2(BANKS);
  localparam int BB = $clog2(BEATS);
  localparam int AB = RB + SB + PB;
  localparam int VB = $clog2(MTU / 64);
  localparam int AGGREGATORS = RINGS * SLOTS * PACKETS;

  // ---- frames come

  wire fb_write;
  wire [NB-1:0] fb_bank;
  wire [BB-1:0] fb_beat;
  wire [BANKS-1:0] released_here, released_written, released_sent;
  wire rx_arrived, rx_too_long;
  localparam int DW = NB + 14 + 1 + 1 + 2 + 1 + 14 + 128 + 128 + 24 + 24 + 3 + 8 + 14 + 320 + 1;
  wire [DW-1:0] rx;
  wire [NB-1:0] rx_bank;
  wire [13:0] rx_frame_bytes, rx_ip_bytes, rx_payload_bytes;
  wire rx_roce, rx_glimpsed, rx_v6, rx_request, rx_first, rx_last, rx_right;
  wire [1:0] rx_tags;
  wire [127:0] rx_source, rx_destination;
  wire [23:0] rx_qp, rx_psn;
  wire [7:0] rx_payload_at;
  wire [319:0] rx_beginning;
  frame_receiver #(.BANKS(BANKS), .BEATS(BEATS)) receiver (
      .clock(clock), .reset(reset), .tvalid(s_axis_tvalid), .tdata(s_axis_tdata), .tkeep(s_axis_tkeep), .tlast(s_axis_tlast),
      .tready(s_axis_tready), .write(fb_write), .write_bank(fb_bank), .write_beat(fb_beat),
      .released(released_here | released_written | released_sent), .arrived(rx_arrived), .bank(rx_bank), .frame_bytes(rx_frame_bytes),
      .roce(rx_roce), .glimpsed(rx_glimpsed), .tags(rx_tags), .v6(rx_v6), .ip_bytes(rx_ip_bytes), .source(rx_source),
      .destination(rx_destination), .qp(rx_qp), .psn(rx_psn), .request(rx_request), .first(rx_first), .last(rx_last),
      .payload_at(rx_payload_at), .payload_bytes(rx_payload_bytes), .beginning(rx_beginning), .icrc_right(rx_right),
      .too_long(rx_too_long));
  assign rx = {rx_bank, rx_frame_bytes, rx_roce, rx_glimpsed, rx_tags, rx_v6, rx_ip_bytes, rx_source, rx_destination, rx_qp, rx_psn,
               rx_request, rx_first, rx_last, rx_payload_at, rx_payload_bytes, rx_beginning, rx_right};

  wire pair_read, frame_read;
  wire [NB-1:0] pair_bank, send_bank;
  wire [BB-1:0] pair_beat, frame_beat;
  wire [1023:0] pair;
  wire [1535:0] pair_head, frame_head;
  wire [511:0] frame_data;
  frame_buffer #(.BANKS(BANKS), .BEATS(BEATS)) frames (
      .clock(clock), .write(fb_write), .write_bank(fb_bank), .write_beat(fb_beat), .write_data(s_axis_tdata), .pair_read(pair_read),
      .pair_bank(pair_bank), .pair_beat(pair_beat), .pair(pair), .pair_head(pair_head), .read(frame_read), .read_bank(send_bank),
      .read_beat(frame_beat), .data(frame_data), .head(frame_head));

  // ---- what becomes of them

  wire frame, frame_taken, dropped;
  wire [DW-1:0] front;
  wire [NB-1:0] bank;
  wire [13:0] frame_bytes, ip_bytes, payload_bytes;
  wire roce, glimpsed, v6, request, first, last, right;
  wire [1:0] tags;
  wire [127:0] source, destination;
  wire [23:0] qp, psn;
  wire [7:0] payload_at;
  wire [319:0] beginning;
  wire arrived_room;  // always: there are as many places as banks
  fifo #(.W(DW), .DEPTH(BANKS)) arrived (
      .clock(clock), .reset(reset), .put(rx_arrived), .in(rx), .room(arrived_room), .take(frame_taken), .out(front), .any(frame));
  assign {bank, frame_bytes, roce, glimpsed, tags, v6, ip_bytes, source, destination, qp, psn, request, first, last, payload_at,
          payload_bytes, beginning, right} = front;

  wire found;
  wire [RB-1:0] found_ring;
  wire [LB-1:0] found_rank;
  connection_table #(.ENTRIES(RINGS * RANKS), .RB(RB), .LB(LB)) connections (
      .clock(clock), .reset(reset), .set(set_connection), .set_entry(connection_entry), .set_valid(connection_valid),
      .set_source(connection_source), .set_destination(connection_destination), .set_qp(connection_qp), .set_ring(connection_ring),
      .set_rank(connection_rank), .source(source), .destination(destination), .qp(qp), .found(found), .ring(found_ring),
      .rank(found_rank));

  wire job /* verilator public_flat_rd */;
  wire job_room, job_int32, job_seals, done;
  wire [1:0] job_kind;
  wire [AB-1:0] job_aggregator, send_aggregator;
  wire [LB-1:0] job_rank;
  wire [LB:0] job_members;
  wire [5:0] job_skip;
  wire [13:0] job_values;
  wire [63:0] job_incarnation, job_message;
  wire [31:0] job_id;
  state_manager #(.RINGS(RINGS), .RANKS(RANKS), .SLOTS(SLOTS), .PACKETS(PACKETS)) states (
      .clock(clock), .reset(reset), .set_ring(set_ring), .set_number(ring_number), .set_id(ring_id), .set_members(ring_members),
      .set_slots(ring_slots), .set_packets(ring_packets), .set_mtu(ring_mtu), .set_nrtv(ring_nrtv), .set_int32(ring_int32),
      .set_incarnation(ring_incarnation), .frame(frame), .frame_taken(frame_taken), .roce(roce), .glimpsed(glimpsed),
      .ip_bytes(ip_bytes), .psn(psn), .request(request), .first(first), .last(last), .payload_bytes(payload_bytes),
      .beginning(beginning), .icrc_right(right), .found(found), .found_ring(found_ring), .found_rank(found_rank),
      .job_room(job_room), .job(job), .job_kind(job_kind), .job_aggregator(job_aggregator), .job_rank(job_rank),
      .job_members(job_members), .job_skip(job_skip), .job_values(job_values), .job_int32(job_int32), .job_seals(job_seals),
      .job_incarnation(job_incarnation), .job_id(job_id), .job_message(job_message), .dropped(dropped), .done(done),
      .done_slot(send_aggregator[PB+:RB+SB]), .lost(rx_too_long), .counter(counter), .counter_value(counter_value));
  assign released_here = dropped ? {{(BANKS - 1) {1'b0}}, 1'b1} << bank : {BANKS{1'b0}};

  // ---- contributions are kept

  localparam int JW = 2 + NB + AB + LB + (LB + 1) + 2 + 1 + 8 + 6 + 14 + 1 + 1 + 64 + 32 + 64 + 14;
  wire [JW-1:0] to_write;
  wire w_job, w_taken, w_v6, w_int32, w_seals;
  wire [1:0] w_kind, w_tags;
  wire [NB-1:0] w_bank;
  wire [AB-1:0] w_aggregator;
  wire [LB-1:0] w_rank;
  wire [LB:0] w_members;
  wire [7:0] w_payload_at;
  wire [5:0] w_skip;
  wire [13:0] w_values, w_frame_bytes;
  wire [63:0] w_incarnation, w_message;
  wire [31:0] w_id;
  fifo #(.W(JW), .DEPTH(4)) jobs (
      .clock(clock), .reset(reset), .put(job),
      .in({job_kind, bank, job_aggregator, job_rank, job_members, tags, v6, payload_at, job_skip, job_values, job_int32, job_seals,
           job_incarnation, job_id, job_message, frame_bytes}),
      .room(job_room), .take(w_taken), .out(to_write), .any(w_job));
  assign {w_kind, w_bank, w_aggregator, w_rank, w_members, w_tags, w_v6, w_payload_at, w_skip, w_values, w_int32, w_seals,
          w_incarnation, w_id, w_message, w_frame_bytes} = to_write;

  wire h_write /* verilator public_flat_rd */, h_read /* verilator public_flat_rd */;
  wire h_write_head;
  wire [AB+LB+VB-1:0] h_write_at, h_read_at;
  wire [511:0] h_write_data, h_data;
  wire [1151:0] h_head, head_data;
  wire [10:0] h_geometry, head_geometry, a_geometry;
  wire a_job, a_taken, a_int32, a_seals;
  wire [1:0] a_kind;
  wire [NB-1:0] a_bank;
  wire [AB-1:0] a_aggregator;
  wire [LB:0] a_members;
  wire [5:0] a_skip;
  wire [13:0] a_values, a_frame_bytes;
  wire [63:0] a_seal;
  history_writer #(.BANKS(BANKS), .BEATS(BEATS), .AB(AB), .PB(PB), .LB(LB), .VB(VB)) writer (
      .clock(clock), .reset(reset), .job(w_job), .job_taken(w_taken), .kind(w_kind), .bank(w_bank), .aggregator(w_aggregator),
      .rank(w_rank), .members(w_members), .tags(w_tags), .v6(w_v6), .payload_at(w_payload_at), .skip(w_skip), .values(w_values),
      .int32(w_int32), .seals(w_seals), .incarnation(w_incarnation), .id(w_id), .message(w_message), .frame_bytes(w_frame_bytes),
      .pair_read(pair_read), .pair_bank(pair_bank), .pair_beat(pair_beat), .pair(pair), .pair_head(pair_head),
      .released(released_written), .write(h_write), .write_at(h_write_at), .write_data(h_write_data), .write_head(h_write_head),
      .head(h_head), .geometry(h_geometry), .next_room(a_taken), .next(a_job), .next_kind(a_kind), .next_bank(a_bank),
      .next_aggregator(a_aggregator), .next_members(a_members), .next_geometry(a_geometry), .next_skip(a_skip),
      .next_values(a_values), .next_int32(a_int32), .next_seals(a_seals), .next_seal(a_seal), .next_frame_bytes(a_frame_bytes));

  // Fig. 8's Payload Buffer and Header Buffer. [aggregator][rank]
  ram #(.W(512), .DEPTH(AGGREGATORS * RANKS << VB)) payload_buffer (
      .clock(clock), .write(h_write), .write_at(h_write_at), .write_data(h_write_data), .read(h_read), .read_at(h_read_at),
      .read_data(h_data));
  wire head_read;
  wire [AB+LB-1:0] head_at, h_head_at;
  assign h_head_at = h_write_at[VB+:AB+LB];
  ram #(.W(1152), .DEPTH(AGGREGATORS * RANKS)) header_buffer (
      .clock(clock), .write(h_write_head), .write_at(h_head_at), .write_data(h_head), .read(head_read), .read_at(head_at),
      .read_data(head_data));
  logic [10:0] geometries[0:AGGREGATORS*RANKS-1];
  always_ff @(posedge clock) if (h_write_head) geometries[h_head_at] <= h_geometry;
  assign head_geometry = geometries[head_at];

  // ---- and added

  wire s_write /* verilator public_flat_rd */, s_read /* verilator public_flat_rd */;
  wire a_next, c_room;
  wire [AB+VB-1:0] s_write_at, s_read_at;
  wire [511:0] s_write_data, s_data;
  sum_engine #(.AB(AB), .LB(LB), .VB(VB)) engine (
      .clock(clock), .reset(reset), .job(a_job), .job_taken(a_taken), .kind(a_kind), .aggregator(a_aggregator), .members(a_members),
      .values(a_values), .int32(a_int32), .read(h_read), .read_at(h_read_at), .data(h_data), .write(s_write), .write_at(s_write_at),
      .write_data(s_write_data), .next_room(c_room), .next(a_next));
  ram #(.W(512), .DEPTH(AGGREGATORS << VB)) aggregation_values (
      .clock(clock), .write(s_write), .write_at(s_write_at), .write_data(s_write_data), .read(s_read), .read_at(s_read_at),
      .read_data(s_data));

  // ---- and leave

  localparam int CW = 2 + NB + AB + (LB + 1) + 11 + 6 + 14 + 1 + 64 + 14;
  wire [CW-1:0] to_send;
  wire c_job, c_taken, c_seals;
  wire [1:0] c_kind;
  wire [LB:0] c_members;
  wire [10:0] c_geometry;
  wire [5:0] c_skip;
  wire [13:0] c_values, c_frame_bytes;
  wire [63:0] c_seal;
  fifo #(.W(CW), .DEPTH(2)) summed (
      .clock(clock), .reset(reset), .put(a_taken),
      .in({a_kind, a_bank, a_aggregator, a_members, a_geometry, a_skip, a_values, a_seals, a_seal, a_frame_bytes}), .room(c_room),
      .take(c_taken), .out(to_send), .any(c_job));
  assign {c_kind, send_bank, send_aggregator, c_members, c_geometry, c_skip, c_values, c_seals, c_seal, c_frame_bytes} = to_send;

  wire out_room, out_valid, out_last, out_made, out_v6;
  wire [511:0] out_data;
  wire [7:0] out_beat;
  wire [1:0] out_tags;
  wire [13:0] out_bytes;
  combinator #(.BANKS(BANKS), .BEATS(BEATS), .AB(AB), .LB(LB), .VB(VB)) combine (
      .clock(clock), .reset(reset), .job(c_job), .job_taken(c_taken), .kind(c_kind), .bank(send_bank), .aggregator(send_aggregator),
      .members(c_members), .geometry(c_geometry), .skip(c_skip), .values(c_values), .seals(c_seals), .seal(c_seal),
      .frame_bytes(c_frame_bytes), .frame_read(frame_read), .frame_beat(frame_beat), .frame_data(frame_data), .frame_head(frame_head),
      .released(released_sent), .head_read(head_read), .head_at(head_at), .head_data(head_data), .head_geometry(head_geometry),
      .sum_read(s_read), .sum_at(s_read_at), .sum_data(s_data), .done(done), .room(out_room), .valid(out_valid), .data(out_data),
      .last(out_last), .beat(out_beat), .made(out_made), .tags(out_tags), .v6(out_v6), .bytes(out_bytes));
  frame_finisher #(.BEATS(BEATS)) finish (
      .clock(clock), .reset(reset), .valid(out_valid), .room(out_room), .data(out_data), .last(out_last), .beat(out_beat),
      .made(out_made), .tags(out_tags), .v6(out_v6), .bytes(out_bytes), .tvalid(m_axis_tvalid), .tdata(m_axis_tdata),
      .tkeep(m_axis_tkeep), .tlast(m_axis_tlast), .tready(m_axis_tready));
endmodule
