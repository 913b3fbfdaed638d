// The calls of simple_switch's runtime interface that netsum makes: names and numbers are the ones on the wire.
namespace cpp netsum.dataplane.bmv2.runtime

enum MatchType { EXACT = 0 }
struct ExactMatch { 1: binary key }
struct Match { 1: MatchType type, 2: optional ExactMatch exact }
struct EntryOptions { 1: optional i32 priority }
struct CounterValue { 1: i64 bytes, 2: i64 packets }
struct MeterRate { 1: double units_per_micros, 2: i32 burst_size }
struct Port { 1: i32 port_num, 2: string iface_name, 3: bool is_up, 4: map<string, string> extra }

exception Refused { 1: i32 code }

service Standard {
  i32 bm_mt_add_entry(1: i32 cxt_id, 2: string table_name, 3: list<Match> match_key, 4: string action_name,
                      5: list<binary> action_data, 6: EntryOptions options) throws (1: Refused ouch),
  void bm_mt_delete_entry(1: i32 cxt_id, 2: string table_name, 3: i32 entry_handle) throws (1: Refused ouch),
  i64 bm_mt_get_num_entries(1: i32 cxt_id, 2: string table_name) throws (1: Refused ouch),
  CounterValue bm_counter_read(1: i32 cxt_id, 2: string counter_name, 3: i32 index) throws (1: Refused ouch),
  void bm_counter_write(1: i32 cxt_id, 2: string counter_name, 3: i32 index, 4: CounterValue value) throws (1: Refused ouch),
  void bm_meter_set_rates(1: i32 cxt_id, 2: string meter_array_name, 3: i32 index, 4: list<MeterRate> rates) throws (1: Refused ouch),
  list<i64> bm_register_read_all(1: i32 cxt_id, 2: string register_array_name) throws (1: Refused ouch),
  void bm_register_write_range(1: i32 cxt_id, 2: string register_array_name, 3: i32 start_index, 4: i32 end_index, 5: i64 value)
    throws (1: Refused ouch),
  list<Port> bm_dev_mgr_show_ports() throws (1: Refused ouch),
  void bm_reset_state(),
}

service SimplePreLAG {
  i32 bm_mc_mgrp_create(1: i32 cxt_id, 2: i32 mgrp) throws (1: Refused ouch),
  void bm_mc_mgrp_destroy(1: i32 cxt_id, 2: i32 mgrp_handle) throws (1: Refused ouch),
  i32 bm_mc_node_create(1: i32 cxt_id, 2: i32 rid, 3: string port_map, 4: string lag_map) throws (1: Refused ouch),
  void bm_mc_node_associate(1: i32 cxt_id, 2: i32 mgrp_handle, 3: i32 l1_handle) throws (1: Refused ouch),
  void bm_mc_node_destroy(1: i32 cxt_id, 2: i32 l1_handle) throws (1: Refused ouch),
}

service SimpleSwitch {
  i32 set_all_egress_queue_depths(1: i32 depth_pkts),
}
