// Takes a contribution into the buffers (§3.1, "fill in a slot in the packet buffer, indexed by the packet's sender's Rank";
// Fig. 8's Header Buffer and Payload Buffer). Values are moved so that they begin at a beat. Every other job goes on as it is.
module history_writer #(
    parameter int BANKS = 4,
    parameter int BEATS = 32,
    parameter int AB = 7,  // bits of an aggregator's number
    parameter int PB = 4,
    parameter int LB = 2,
    parameter int VB = 4  // of a beat of values
) (
    input wire clock,
    input wire reset,
    input wire job,
    output wire job_taken,
    input wire [1:0] kind,
    input wire [$clog2(BANKS)-1:0] bank,
    input wire [AB-1:0] aggregator,
    input wire [LB-1:0] rank,
    input wire [LB:0] members,
    input wire [1:0] tags,
    input wire v6,
    input wire [7:0] payload_at,
    input wire [5:0] skip,
    input wire [13:0] values,
    input wire int32,
    input wire seals,
    input wire [63:0] incarnation,
    input wire [31:0] id,
    input wire [63:0] message,
    input wire [13:0] frame_bytes,
    // The frame.
    output wire pair_read,
    output wire [$clog2(BANKS)-1:0] pair_bank,
    output wire [$clog2(BEATS)-1:0] pair_beat,
    input wire [1023:0] pair,
    input wire [1535:0] pair_head,
    output wire [BANKS-1:0] released,
    // The payload buffer, and the header buffer with where in a frame its values begin.
    output logic write,
    output logic [AB+LB+VB-1:0] write_at,
    output logic [511:0] write_data,
    output logic write_head,
    output logic [1151:0] head,
    output logic [10:0] geometry,
    // To the next stage.
    input wire next_room,
    output wire next,
    output logic [1:0] next_kind,
    output logic [$clog2(BANKS)-1:0] next_bank,
    output logic [AB-1:0] next_aggregator,
    output logic [LB:0] next_members,
    output logic [10:0] next_geometry,
    output logic [5:0] next_skip,
    output logic [13:0] next_values,
    output logic next_int32,
    output logic next_seals,
    output logic [63:0] next_seal,
    output logic [13:0] next_frame_bytes
);
  localparam logic [1:0] STORE = 1, SUM = 2, ANSWER = 3;
  wire stores = kind == STORE || kind == SUM;
  wire [7:0] begins = payload_at + {2'd0, skip};
  wire [VB:0] beats = values[6+:VB+1] + {{VB{1'b0}}, values[5:0] != 0};

  // The seal is computed meanwhile.
  logic started;
  wire sealed;
  wire [63:0] seal_value;
  seal #(.MB(LB + 1)) seal_ (
      .clock(clock), .start(job && !started), .incarnation(incarnation), .message(message), .ring(id),
      .packet({{(32 - PB) {1'b0}}, aggregator[PB-1:0]}), .contributions(members), .ready(sealed), .value(seal_value));

  logic [VB:0] beat;
  wire copied = !stores || beat + 1'b1 >= beats;
  wire needs_seal = seals && (kind == SUM || kind == ANSWER);
  // A job that goes on waits until the next stage has room, and until its last beat is written.
  logic waiting, fresh;
  assign next = waiting && !fresh;
  wire room = !waiting || (next && next_room);
  assign job_taken = job && copied && (kind == STORE || room) && (!needs_seal || (started && sealed));
  wire copies = job && stores && (beat < beats || beat == 0);
  assign pair_read = copies;
  assign pair_bank = bank;
  assign pair_beat = begins[7:6] + beat;
  assign released = job_taken && stores ? {{(BANKS - 1) {1'b0}}, 1'b1} << bank : {BANKS{1'b0}};

  // In the clock behind: what was read.
  logic copying, with_head;
  logic [5:0] shift;
  logic [13:0] left;  // bytes
  logic [AB+LB+VB-1:0] to;
  logic [10:0] geometry_of;
  wire [511:0] moved = pair >> {shift, 3'b0};
  always_comb begin
    for (int i = 0; i < 64; i = i + 1) write_data[8*i+:8] = i < left ? moved[8*i+:8] : 8'd0;
    write = copying && left != 0;
    write_at = to;
    write_head = with_head;
    head = pair_head[1151:0];
    geometry = geometry_of;
  end
  always_ff @(posedge clock) begin
    shift <= begins[5:0];
    left <= values >= {beat, 6'd0} ? values - {beat, 6'd0} : 14'd0;
    to <= {aggregator, rank, beat[VB-1:0]};
    geometry_of <= {tags, v6, begins};
    if (job_taken && kind != STORE) begin
      next_kind <= kind;
      next_bank <= bank;
      next_aggregator <= aggregator;
      next_members <= members;
      next_geometry <= {tags, v6, begins};
      next_skip <= skip;
      next_values <= values;
      next_int32 <= int32;
      next_seals <= seals;
      next_seal <= seal_value;
      next_frame_bytes <= frame_bytes;
    end
    if (reset) begin
      started <= 0;
      beat <= 0;
      waiting <= 0;
      fresh <= 0;
      copying <= 0;
      with_head <= 0;
    end else begin
      started <= job && !job_taken;
      beat <= job_taken ? 0 : copies ? beat + 1'b1 : beat;
      waiting <= (waiting && !(next && next_room)) || (job_taken && kind != STORE);
      fresh <= job_taken && kind != STORE;
      copying <= copies;
      with_head <= copies && beat == 0;
    end
  end
endmodule
