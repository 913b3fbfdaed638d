// Adds a place's contributions in rank order: the same bits whatever the order of arrival (docs/numerics.md). A float sum that
// is not finite is formed again in double, as it may only have left float32 on the way. Every other job goes on as it is.
module sum_engine #(
    parameter int AB = 7,
    parameter int LB = 2,
    parameter int VB = 4
) (
    input wire clock,
    input wire reset,
    input wire job,
    output wire job_taken,
    input wire [1:0] kind,
    input wire [AB-1:0] aggregator,
    input wire [LB:0] members,
    input wire [13:0] values,
    input wire int32,
    // The payload buffer.
    output wire read,
    output wire [AB+LB+VB-1:0] read_at,
    input wire [511:0] data,
    // The sums (Fig. 8's Aggregation Value).
    output wire write,
    output wire [AB+VB-1:0] write_at,
    output wire [511:0] write_data,
    input wire next_room,
    output wire next
);
  localparam logic [1:0] SUM = 2;
  localparam logic [2:0] ADD = 0, DRAIN = 1, LOOK = 2, FETCH = 3, WIDE = 4, WRITE = 5;
  wire [VB:0] beats = values[6+:VB+1] + {{VB{1'b0}}, values[5:0] != 0};
  // A beat's sum is there again two clocks later, so each round takes two at least.
  wire [VB:0] round = beats < 2 ? 2 : beats;

  logic [2:0] step;
  logic [VB:0] beat;
  logic [LB:0] rank;
  wire sums = job && kind == SUM;
  wire adding = sums && step == ADD;
  wire round_ends = beat + 1'b1 == round;
  wire last_rank = rank + 1'b1 == members;

  // Sums of float32 and int32.
  wire issue = adding && beat < beats;
  logic issued, first, finishes;
  logic [VB-1:0] at;
  wire [511:0] so_far, added;
  wire [15:0] strange_now;
  adders add (.int32(int32), .a(so_far), .b(data), .alone(first), .sum(added), .strange(strange_now));
  ram #(.W(512), .DEPTH(1 << VB)) accumulator (
      .clock(clock), .write(issued), .write_at(at), .write_data(added), .read(issue || step == LOOK), .read_at(beat[VB-1:0]),
      .read_data(so_far));
  logic [15:0] strange[0:(1<<VB)-1];
  logic any_strange;

  // The sums that are formed again, one after the other.
  logic [511:0] mended;
  logic [15:0] left;
  logic [3:0] lane;
  always_comb begin
    lane = 0;
    for (int i = 15; i >= 0; i = i - 1) if (left[i]) lane = i;
  end
  logic adds_wide;
  logic [63:0] total;
  wire [63:0] contribution, wide_sum;
  wire [31:0] narrowed;
  fp_widen widener (.narrow(data[32*lane+:32]), .wide(contribution));
  fp_add #(.E(11), .M(52)) wide_adder (.a(total), .b(contribution), .sum(wide_sum));
  fp_narrow narrower (.wide(total), .narrow(narrowed));
  wire fetch = step == WIDE && rank != members;

  assign read = issue || fetch;
  assign read_at = {aggregator, rank[LB-1:0], beat[VB-1:0]};
  wire writes_mended = step == WRITE;
  assign write = (issued && finishes) || writes_mended;
  assign write_at = {aggregator, writes_mended ? beat[VB-1:0] : at};
  assign write_data = writes_mended ? mended : added;
  wire done = sums && ((step == DRAIN && !any_strange && !(issued && strange_now != 0)) || (step == LOOK && beat == beats));
  assign next = job && (kind != SUM || done);
  assign job_taken = next && next_room;

  always_ff @(posedge clock) begin
    issued <= issue && !reset;
    first <= rank == 0;
    finishes <= last_rank;
    at <= beat[VB-1:0];
    if (issued && finishes) strange[at] <= strange_now;
    adds_wide <= fetch;
    if (reset || job_taken) begin
      step <= ADD;
      beat <= 0;
      rank <= 0;
      any_strange <= 0;
    end else begin
      if (issued && finishes && strange_now != 0) any_strange <= 1;
      case (step)
        ADD:
        if (sums) begin
          beat <= round_ends ? 0 : beat + 1'b1;
          if (round_ends) rank <= rank + 1'b1;
          if (round_ends && last_rank) step <= DRAIN;
        end
        DRAIN: if (!issued && any_strange) step <= LOOK;
        LOOK: begin  // a beat
          rank <= 0;
          total <= 0;
          if (beat != beats) begin
            if (strange[beat[VB-1:0]] == 0) beat <= beat + 1'b1;
            else step <= FETCH;
          end
        end
        FETCH: begin
          mended <= so_far;
          left <= strange[beat[VB-1:0]];
          step <= WIDE;
        end
        WIDE: begin  // a sum
          if (fetch) rank <= rank + 1'b1;
          if (adds_wide) total <= wide_sum;
          if (!fetch && !adds_wide) begin
            mended[32*lane+:32] <= narrowed;
            left[lane] <= 0;
            rank <= 0;
            total <= 0;
            if ((left & ~(16'd1 << lane)) == 0) step <= WRITE;
          end
        end
        default: begin
          beat <= beat + 1'b1;
          step <= LOOK;
        end
      endcase
    end
  end
endmodule
