// Decides what becomes of each frame (§4: "a State Manager which tracks the arrival states of the packets, i.e., the bitmaps of
// aggregators"): the rules of protocol/netreduce/ring.cc, with sums that leave at once (order=arrival, the paper's). Frames are
// judged one after the other, and leave as jobs for the stages behind, in order.
module state_manager #(
    parameter int RINGS = 2,
    parameter int RANKS = 4,
    parameter int SLOTS = 8,  // messages that have aggregators: 2N at most (§3.1)
    parameter int PACKETS = 16,  // of a message
    parameter int RB = RINGS > 1 ? $clog2(RINGS) : 1,
    parameter int LB = $clog2(RANKS),
    parameter int SB = $clog2(SLOTS),
    parameter int PB = $clog2(PACKETS)
) (
    input wire clock,
    input wire reset,
    // A ring's configuration; its state is empty then.
    input wire set_ring,
    input wire [RB-1:0] set_number,
    input wire [31:0] set_id,  // RingID
    input wire [LB:0] set_members,
    input wire [SB:0] set_slots,  // a power of two
    input wire [PB:0] set_packets,
    input wire [13:0] set_mtu,
    input wire set_nrtv,
    input wire set_int32,
    input wire [63:0] set_incarnation,
    // The frame in front.
    input wire frame,
    output wire frame_taken,
    input wire roce,
    input wire glimpsed,
    input wire [13:0] ip_bytes,
    input wire [23:0] psn,
    input wire request,
    input wire first,
    input wire last,
    input wire [13:0] payload_bytes,
    input wire [319:0] beginning,
    input wire icrc_right,
    // The connection lookup table's answer.
    input wire found,
    input wire [RB-1:0] found_ring,
    input wire [LB-1:0] found_rank,
    // The job, or that the frame is dropped.
    input wire job_room,
    output wire job,
    output wire [1:0] job_kind,
    output wire [RB+SB+PB-1:0] job_aggregator,
    output wire [LB-1:0] job_rank,
    output wire [LB:0] job_members,
    output wire [5:0] job_skip,  // bytes in front of the values
    output wire [13:0] job_values,  // bytes
    output wire job_int32,
    output wire job_seals,
    output wire [63:0] job_incarnation,
    output wire [31:0] job_id,
    output wire [63:0] job_message,
    output wire dropped,
    // A job that refers to a slot's sums has ended.
    input wire done,
    input wire [RB+SB-1:0] done_slot,
    // Counters.
    input wire lost,  // a frame that was too long
    input wire [RB+4:0] counter,
    output wire [31:0] counter_value
);
  localparam int N = RINGS * SLOTS;
  localparam int AB = RB + SB + PB;
  localparam logic [1:0] PASS = 0, STORE = 1, SUM = 2, ANSWER = 3;
  // Counters of a ring (RingCounters); those of all frames are behind the last ring's.
  localparam int C_PACKETS = 0, C_BYTES = 1, C_CONTRIBUTIONS = 2, C_SUMS = 3, C_RESULTS = 4, C_ANSWERED = 5, C_WAITING = 6,
      C_ICRC = 7, C_HEADER = 8, C_UNPLACED = 9, C_OLD = 10, C_EARLY = 11, C_MISPLACED = 12, C_MISMATCH = 13, C_SHAPE = 14;

  // ---- configuration and state

  logic [31:0] ids[0:RINGS-1];
  logic [LB:0] members[0:RINGS-1];
  logic [SB:0] slots[0:RINGS-1];
  logic [PB:0] most_packets[0:RINGS-1];
  logic [13:0] mtus[0:RINGS-1];
  logic [RINGS-1:0] nrtvs, int32s;
  logic [63:0] incarnations[0:RINGS-1];
  logic [63:0] next_messages[0:RINGS-1];  // the first whose sums have not all left

  // A message's aggregators. `used`, `known` and `touched` say what of the rest counts.
  logic [N-1:0] used;
  logic [63:0] messages[0:N-1];
  logic [PB:0] packets[0:N-1];
  logic [PB:0] complete[0:N-1];  // sums
  logic [31:0] signatures[0:N-1];
  logic [N-1:0] slot_int32s;
  logic [3:0] busy[0:N-1];  // jobs that refer to its sums
  logic [N*RANKS-1:0] known;
  logic [23:0] first_psns[0:N*RANKS-1];  // PSN0
  logic [N*PACKETS-1:0] touched;
  // An aggregator: whose packets have arrived (Fig. 9), and their length.
  logic [RANKS+13:0] aggregators[0:N*PACKETS-1];
  logic [RINGS*RANKS*SB-1:0] newest;  // slot of the message that the rank's newest packet was of

  // ---- the frame that is judged

  localparam logic [1:0] LOOK = 0, JUDGE = 1, PLACE = 2, ENTER = 3;
  logic [1:0] step;
  logic hit;
  logic [RB-1:0] ring;
  logic [LB-1:0] rank;
  logic [RB-1:0] r;  // where only rings that exist are looked at
  assign r = RINGS > 1 ? ring : {RB{1'b0}};

  wire [63:0] next_message = next_messages[r];
  wire [SB-1:0] slot_mask = slots[r][SB-1:0] - 1'b1;
  wire [RB+SB-1:0] next_slot = {ring, next_message[SB-1:0] & slot_mask};
  // Messages whose sums have all left are stepped over, one a clock, before anything is decided.
  wire advance = hit && used[next_slot] && messages[next_slot] == next_message && complete[next_slot] == packets[next_slot];

  wire header_right;
  wire [31:0] header_ring, header_rank, header_packets, header_signature;
  wire [63:0] header_message;
  wire header_int32;
  ina_header header (
      .nrtv(nrtvs[r]), .ring_int32(int32s[r]), .beginning(beginning), .payload_bytes(payload_bytes), .next_message(next_message),
      .right(header_right), .ring(header_ring), .rank(header_rank), .message(header_message), .packets(header_packets),
      .signature(header_signature), .int32(header_int32));
  wire header_fits = header_right && header_ring == ids[r] && header_rank == {{(32 - LB) {1'b0}}, rank} && header_packets != 0 &&
      header_packets <= {{(31 - PB) {1'b0}}, most_packets[r]};

  // A packet that begins a message names it (§3.2).
  wire [SB-1:0] named = header_message[SB-1:0] & slot_mask;
  wire [RB+SB-1:0] named_slot = {ring, named};
  wire named_used = used[named_slot];
  wire [63:0] named_message = messages[named_slot];
  wire again = named_used && named_message == header_message;
  wire old = named_used && header_message < named_message;
  // Message m takes the aggregators of m - 2N, if all of those sums have left.
  wire free = named_used ? header_message == named_message + slots[r] && named_message < next_message
                         : header_message < {{(63 - SB) {1'b0}}, slots[r]};
  wire named_known = known[{named_slot, rank}];
  wire [23:0] named_first = first_psns[{named_slot, rank}];
  // Messages are consecutive on a connection.
  wire [63:0] message_behind = header_message + 1'b1, message_before = header_message - 1'b1;
  wire [RB+SB-1:0] behind = {ring, message_behind[SB-1:0] & slot_mask}, before_ = {ring, message_before[SB-1:0] & slot_mask};
  wire knows_behind = used[behind] && messages[behind] == message_behind && known[{behind, rank}];
  wire knows_before = header_message != 0 && used[before_] && messages[before_] == message_before && known[{before_, rank}];
  wire [23:0] to_behind = first_psns[{behind, rank}] - psn, from_before = psn - first_psns[{before_, rank}];
  wire follows = (!knows_behind || to_behind == {{(23 - PB) {1'b0}}, header_packets[PB:0]}) &&
      (!knows_before || from_before == {{(23 - PB) {1'b0}}, packets[before_]});
  wire contradicts = (again && named_known && named_first != psn) || last != (header_packets == 1) || !follows;
  wire same_call = packets[named_slot] == header_packets[PB:0] && signatures[named_slot] == header_signature &&
      slot_int32s[named_slot] == header_int32;

  // Any other packet is placed by its PSN: 0 <= PSN - PSN0 < MsgLen (24 bits, signed), in one of the messages of two windows.
  logic [SLOTS-1:0] holds;
  logic [24*SLOTS-1:0] offsets;
  always_comb begin
    for (int i = 0; i < SLOTS; i = i + 1) begin
      offsets[24*i+:24] = psn - first_psns[{ring, i[SB-1:0], rank}];
      holds[i] = used[{ring, i[SB-1:0]}] && known[{ring, i[SB-1:0], rank}] && !offsets[24*i+23] &&
          offsets[24*i+:24] < {{(23 - PB) {1'b0}}, packets[{ring, i[SB-1:0]}]};
    end
  end
  wire [SB-1:0] newest_slot = newest[{ring, rank}*SB+:SB];
  logic [SB-1:0] lowest_match;
  always_comb begin
    lowest_match = 0;
    for (int i = SLOTS - 1; i >= 0; i = i - 1) if (holds[i]) lowest_match = i;
  end
  wire [SB-1:0] match = holds[newest_slot] ? newest_slot : lowest_match;
  wire [23:0] match_offset = offsets[24*match+:24];
  wire match_last = match_offset[PB:0] + 1'b1 == packets[{ring, match}];

  // ---- the place, and what is there

  logic [SB-1:0] slot;
  logic [PB-1:0] packet;
  wire [RB+SB-1:0] placed_slot = {ring, slot};
  wire [AB-1:0] aggregator = {placed_slot, packet};
  wire untouched = !touched[aggregator];
  wire [RANKS-1:0] arrived = untouched ? {RANKS{1'b0}} : aggregators[aggregator][RANKS-1:0];
  wire [13:0] length = aggregators[aggregator][RANKS+:14];
  wire [RANKS-1:0] this_rank = {{(RANKS - 1) {1'b0}}, 1'b1} << rank;
  wire [RANKS-1:0] all = ~({RANKS{1'b1}} << members[r]);
  wire repeat_ = arrived[rank];
  wire is_complete = arrived == all;
  wire completes = (arrived | this_rank) == all;
  wire seals = !nrtvs[r];
  wire [5:0] skip = packet == 0 ? (seals ? 6'd40 : 6'd16) : seals ? 6'd8 : 6'd0;
  wire [13:0] values = payload_bytes - {8'd0, skip};
  wire shape_fits = payload_bytes <= mtus[r] && payload_bytes >= {8'd0, skip} && values[1:0] == 0 &&
      (untouched || payload_bytes == length);

  wire gradient = roce && request && hit;
  wire unreadable = !roce && glimpsed && hit;
  wire passes = step == JUDGE && !gradient && !unreadable;
  wire damaged = step == JUDGE && gradient && !icrc_right && !advance;
  wire waits_for_slot = first && header_fits && !old && !again && free && !contradicts && busy[named_slot] != 0;
  wire decide = step == PLACE && !waits_for_slot;
  wire bad_header = decide && first && !header_fits;
  wire too_old = decide && first && header_fits && old;
  wire too_early = decide && first && header_fits && !old && !again && !free;
  wire named_well = decide && first && header_fits && !old && (again || free);
  wire unplaced = decide && !first && holds == 0;
  wire misplaced = (named_well && contradicts) || (decide && !first && holds != 0 && (match_offset == 0 || match_last != last));
  wire opens = named_well && !contradicts && !again;
  wire mismatch = named_well && !contradicts && again && !same_call;
  wire placed = decide && !bad_header && !too_old && !too_early && !unplaced && !misplaced && !mismatch;
  wire enter = step == ENTER && (job_room || !shape_fits || (repeat_ && !is_complete));
  wire bad_shape = enter && !shape_fits;
  wire waits = enter && shape_fits && repeat_ && !is_complete;
  wire answers = enter && shape_fits && repeat_ && is_complete;
  wire enters = enter && shape_fits && !repeat_;
  wire sums = enters && completes;

  assign dropped = (step == JUDGE && unreadable && !advance) || damaged || (decide && !placed) || bad_shape || waits;
  assign job = (passes && !advance && job_room) || answers || enters;
  assign frame_taken = dropped || job;
  assign job_kind = step == JUDGE ? PASS : answers ? ANSWER : sums ? SUM : STORE;
  assign job_aggregator = aggregator;
  assign job_rank = rank;
  assign job_members = members[r];
  assign job_skip = skip;
  assign job_values = values;
  assign job_int32 = slot_int32s[placed_slot];
  assign job_seals = seals;
  assign job_incarnation = incarnations[r];
  assign job_id = ids[r];
  assign job_message = messages[placed_slot];

  wire refers = answers || sums;
  always_ff @(posedge clock) begin
    if (set_ring) begin
      ids[set_number] <= set_id;
      members[set_number] <= set_members;
      slots[set_number] <= set_slots;
      most_packets[set_number] <= set_packets;
      mtus[set_number] <= set_mtu;
      incarnations[set_number] <= set_incarnation;
      next_messages[set_number] <= 0;
    end else if (step == JUDGE && advance) next_messages[r] <= next_message + 1'b1;
    if (opens) begin
      messages[named_slot] <= header_message;
      packets[named_slot] <= header_packets[PB:0];
      signatures[named_slot] <= header_signature;
    end
    if (opens || sums) complete[opens ? named_slot : placed_slot] <= opens ? 0 : complete[placed_slot] + 1'b1;
    if (placed && first) first_psns[{named_slot, rank}] <= psn;
    if (enters) aggregators[aggregator] <= {payload_bytes, arrived | this_rank};
    if (step == LOOK) begin
      hit <= found;
      ring <= found_ring;
      rank <= found_rank;
    end
    if (decide) begin
      slot <= first ? named : match;
      packet <= first ? 0 : match_offset[PB-1:0];
    end
    if (reset) begin
      step <= LOOK;
      used <= 0;
      nrtvs <= 0;
      int32s <= 0;
    end else begin
      case (step)
        LOOK: if (frame) step <= JUDGE;
        JUDGE: if (frame_taken) step <= LOOK; else if (gradient && !advance) step <= PLACE;
        PLACE: if (placed) step <= ENTER; else if (decide) step <= LOOK;
        default: if (enter) step <= LOOK;
      endcase
      if (set_ring) begin
        used[set_number*SLOTS+:SLOTS] <= 0;
        newest[set_number*RANKS*SB+:RANKS*SB] <= 0;
        nrtvs[set_number] <= set_nrtv;
        int32s[set_number] <= set_int32;
      end
      if (opens) begin
        used[named_slot] <= 1;
        slot_int32s[named_slot] <= header_int32;
        known[named_slot*RANKS+:RANKS] <= this_rank;
        touched[named_slot*PACKETS+:PACKETS] <= 0;
      end else if (placed && first) known[{named_slot, rank}] <= 1;
      if (enters) touched[aggregator] <= 1;
      if (decide && (first ? placed : holds != 0)) newest[{ring, rank}*SB+:SB] <= first ? named : match;
    end
  end

  generate
    genvar i;
    for (i = 0; i < N; i = i + 1) begin : of_slot
      wire more = refers && placed_slot == i, less = done && done_slot == i;
      logic [3:0] jobs;
      always_ff @(posedge clock) jobs <= reset ? 4'd0 : jobs + {3'd0, more} - {3'd0, less};
      assign busy[i] = jobs;
    end
  endgenerate

  // ---- counters

  logic [31:0] counters[0:RINGS*16+15];
  logic [31:0] passed, others, dropped_unreadable, dropped_long;
  wire [3:0] outcome = damaged ? C_ICRC : bad_header ? C_HEADER : unplaced ? C_UNPLACED : too_old ? C_OLD : too_early ? C_EARLY
      : misplaced ? C_MISPLACED : mismatch ? C_MISMATCH : bad_shape ? C_SHAPE : waits ? C_WAITING : answers ? C_ANSWERED : C_CONTRIBUTIONS;
  generate
    genvar c, g;
    for (g = 0; g < RINGS; g = g + 1) begin : of_ring
      for (c = 0; c < 15; c = c + 1) begin : count
        wire here = frame_taken && gradient && ring == g;
        logic [31:0] value;
        always_ff @(posedge clock) begin
          if (reset || (set_ring && set_number == g)) value <= 0;
          else if (here && c == C_PACKETS) value <= value + 1;
          else if (here && c == C_BYTES) value <= value + {18'd0, ip_bytes};
          else if (here && c == C_SUMS) value <= value + {31'd0, sums};
          else if (here && c == C_RESULTS) value <= value + (sums ? {{(31 - LB) {1'b0}}, members[r]} : {31'd0, answers});
          else if (here && c == outcome) value <= value + 1;
        end
        assign counters[16*g+c] = value;
      end
      assign counters[16*g+15] = 0;
    end
  endgenerate
  always_ff @(posedge clock) begin
    passed <= reset ? 0 : passed + {31'd0, job && job_kind == PASS && roce};
    others <= reset ? 0 : others + {31'd0, job && job_kind == PASS && !roce};
    dropped_unreadable <= reset ? 0 : dropped_unreadable + {31'd0, step == JUDGE && unreadable && dropped};
    dropped_long <= reset ? 0 : dropped_long + {31'd0, lost};
  end
  generate
    for (c = 4; c < 16; c = c + 1) begin : unused
      assign counters[16*RINGS+c] = 0;
    end
  endgenerate
  assign counters[16*RINGS] = passed;
  assign counters[16*RINGS+1] = others;
  assign counters[16*RINGS+2] = dropped_unreadable;
  assign counters[16*RINGS+3] = dropped_long;
  assign counter_value = counters[counter];

`ifdef PROOF
  // What rtl/prove shows by induction, for any packets in any order: a message's aggregators are given away only when each of
  // its sums has been formed and has left, and each is formed once. The rest is what the induction needs.
  generate
    genvar s;
    for (s = 0; s < N; s = s + 1) begin : proof
      logic [PB:0] full;  // aggregators that all ranks' packets have reached
      always_comb begin
        full = 0;
        for (int p = 0; p < PACKETS; p = p + 1)
          if (touched[s*PACKETS+p] && aggregators[s*PACKETS+p][RANKS-1:0] == all) full = full + 1'b1;
      end
      always_ff @(posedge clock)
        if (!reset) begin
          if (used[s]) begin
            assert (complete[s] == full && complete[s] <= packets[s] && packets[s] != 0 && packets[s] <= PACKETS);
            assert ((messages[s] & (SLOTS - 1)) == s && next_messages[0] <= messages[s] + SLOTS && messages[s] < next_messages[0] + SLOTS);
            assert (messages[s] >= next_messages[0] || complete[s] == packets[s]);
            for (int p = 0; p < PACKETS; p = p + 1) assert (!touched[s*PACKETS+p] || p < packets[s]);
          end else assert (next_messages[0] <= s);
          if (opens && named_slot == s && used[s]) assert (complete[s] == packets[s] && busy[s] == 0);
          if (sums && placed_slot == s) assert (!touched[aggregator] || aggregators[aggregator][RANKS-1:0] != all);
        end
    end
  endgenerate
  always_ff @(posedge clock) begin
    // The ring is set when all begins.
    assume (set_ring == reset && set_number == 0 && set_slots == SLOTS && set_members == RANKS && set_packets <= PACKETS);
    if (!reset) assert (slots[0] == SLOTS && members[0] == RANKS && most_packets[0] <= PACKETS);
    assume (found_ring == 0 && next_messages[0] < 64'h4000_0000_0000_0000);
    if (!reset) assert (ring == 0 || step == LOOK);
    if (!reset && step == ENTER) assert (used[placed_slot] && {1'b0, packet} < packets[placed_slot]);
  end
`endif
endmodule
