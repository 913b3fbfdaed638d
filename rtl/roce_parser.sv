// Reads the headers of a frame (§4, "a Parser identifies the aggregation packet"): Ethernet with up to two VLAN tags, IPv4 or
// IPv6, UDP, and InfiniBand's transport headers. The rules are those of wire::roce::parse() and glance(). Combinational.
module roce_parser (
    input wire [1535:0] head,  // the frame's first 192 bytes; byte i is head[8*i+:8]
    input wire [13:0] frame_bytes,
    output wire roce,  // a whole RoCEv2 packet
    output wire glimpsed,  // whether at least its connection can be read
    output wire [1:0] tags,
    output wire v6,
    output wire [13:0] ip_bytes,
    output wire [127:0] source,
    output wire [127:0] destination,
    output wire [23:0] qp,
    output wire [23:0] psn,
    output wire request,  // SEND or WRITE
    output wire first,
    output wire last,
    output wire [7:0] payload_at,
    output wire [13:0] payload_bytes,
    output wire [319:0] beginning  // of the payload
);
  function automatic [15:0] be16(input [15:0] bytes);
    be16 = {bytes[7:0], bytes[15:8]};
  endfunction
  function automatic [23:0] be24(input [23:0] bytes);
    be24 = {bytes[7:0], bytes[15:8], bytes[23:16]};
  endfunction
  function automatic is_tag(input [15:0] type_);
    is_tag = type_ == 16'h8100 || type_ == 16'h88a8;
  endfunction

  wire [15:0] types0 = be16(head[8*12+:16]);
  wire [15:0] types1 = be16(head[8*16+:16]);
  wire [15:0] types2 = be16(head[8*20+:16]);
  wire tag0 = is_tag(types0);
  wire tag1 = tag0 && is_tag(types1);
  assign tags = {tag1, tag0 && !tag1};
  wire [15:0] ether_type = tag1 ? types2 : tag0 ? types1 : types0;
  wire [4:0] ip_at = 5'd14 + {1'b0, tags, 2'b0};
  wire is_ip = frame_bytes >= {9'd0, ip_at} && (ether_type == 16'h0800 || ether_type == 16'h86dd);
  wire [13:0] available = frame_bytes - {9'd0, ip_at};

  wire [1359:0] ip = tag1 ? head[8*22+:1360] : tag0 ? head[8*18+:1360] : head[8*14+:1360];
  wire v4 = ip[7:4] == 4;
  assign v6 = ip[7:4] == 6;
  wire [15:0] fragment = be16(ip[8*6+:16]);
  wire udp_next = v4 ? ip[8*9+:8] == 17 : ip[8*6+:8] == 17;
  wire [16:0] total = v4 ? {1'b0, be16(ip[8*2+:16])} : 17'd40 + {1'b0, be16(ip[8*4+:16])};
  assign ip_bytes = total[13:0];
  logic [19:0] ip_sum;
  always_comb begin
    ip_sum = 0;
    for (int i = 0; i < 10; i = i + 1) ip_sum = ip_sum + {4'd0, ip[16*i+:16]};
  end
  wire [16:0] ip_folded = {1'b0, ip_sum[15:0]} + {13'd0, ip_sum[19:16]};
  wire ip_sum_right = ip_folded == 17'hffff || ip_folded == 17'h1fffe;

  // IPv4 addresses as IPv4-mapped IPv6.
  localparam logic [95:0] MAPPED = {16'hffff, 80'd0};
  assign source = v4 ? {ip[8*12+:32], MAPPED} : ip[8*8+:128];
  assign destination = v4 ? {ip[8*16+:32], MAPPED} : ip[8*24+:128];

  // What can be seen of packets with IP options, of first fragments and of others that are not whole.
  wire [5:0] udp_at = v4 ? {ip[3:0], 2'b0} : 6'd40;
  wire [255:0] seen_udp = ip[767:0] >> {udp_at, 3'b0};
  wire long_enough_ip = available >= (v4 ? 14'd20 : 14'd40);
  assign glimpsed = is_ip && (v4 || v6) && long_enough_ip && udp_next && !(v4 && (fragment & 16'h1fff) != 0) && udp_at >= 20 &&
      available >= {8'd0, udp_at} + 14'd20 && be16(seen_udp[8*2+:16]) == 16'd4791;
  assign qp = be24(seen_udp[8*13+:24]);

  wire [159:0] udp = v6 ? ip[8*40+:160] : ip[8*20+:160];
  wire [16:0] before_udp = v6 ? 17'd40 : 17'd20;
  wire [16:0] udp_bytes = total - before_udp;
  wire [7:0] opcode = udp[8*8+:8];
  wire [1:0] pad = udp[8*9+4+:2];
  wire [3:0] version = udp[8*9+:4];
  assign psn = be24(udp[8*17+:24]);

  // FIRST, MIDDLE, LAST, LAST with immediate, ONLY, ONLY with immediate: of SEND, then of WRITE; of RC, then of UC.
  wire [4:0] operation = opcode[4:0];
  wire service = opcode[7:5] == 0 || opcode[7:5] == 1;
  wire write = operation >= 6;
  wire [4:0] kind = write ? operation - 5'd6 : operation;
  assign request = service && operation < 12;
  assign first = request && (kind == 0 || kind >= 4);
  assign last = request && kind >= 2;
  wire immediate = request && (kind == 3 || kind == 5);
  wire reth = (request && write && first) || opcode == 8'h0c;
  wire response = opcode >= 8'h0d && opcode <= 8'h10;
  wire aeth = (response && opcode != 8'h0e) || opcode == 8'h11;
  wire notification = opcode == 8'h81;
  wire known = request || opcode == 8'h0c || response || opcode == 8'h11 || notification;
  wire may_have_payload = request || response || notification;
  wire [16:0] headers = before_udp + 17'd20 + (reth ? 17'd16 : 17'd0) + (aeth ? 17'd4 : 17'd0) + (immediate ? 17'd4 : 17'd0);
  wire [16:0] padded = total - headers - 17'd4;

  wire ip_right = v4 ? ip[7:0] == 8'h45 && ip_sum_right && (fragment & 16'h3fff) == 0 : v6;
  assign roce = is_ip && ip_right && long_enough_ip && udp_next && total <= {3'd0, available} && total >= before_udp + 17'd24 &&
      be16(udp[8*2+:16]) == 16'd4791 && {1'b0, be16(udp[8*4+:16])} == udp_bytes && version == 0 && known &&
      total >= headers + 17'd4 && padded[1:0] == 0 && padded <= 4096 && (may_have_payload || padded == 0) &&
      {15'd0, pad} <= padded;
  assign payload_at = {3'd0, ip_at} + headers[7:0];
  assign payload_bytes = padded[13:0] - {12'd0, pad};
  assign beginning = head >> {payload_at, 3'b0};
endmodule
