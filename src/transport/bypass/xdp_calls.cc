// The calls of libbpf and libxdp that netsum makes, each of which loads them.
#define LIBBPF_API __attribute__((visibility("hidden")))
#pragma GCC visibility push(hidden)
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <xdp/libxdp.h>
#include <xdp/xsk.h>

#include "transport/system/late_library.h"

namespace {
constinit netsum::transport::LateLibrary bpf("libbpf.so.1", "libbpf1"), xdp("libxdp.so.1", "libxdp1");
}  // namespace

extern "C" {
NETSUM_LATE(bpf, int, bpf_link__destroy, (bpf_link * link), link)
NETSUM_LATE(bpf, int, bpf_map__set_max_entries, (bpf_map * map, __u32 entries), map, entries)
NETSUM_LATE(bpf, int, bpf_map_create,
            (bpf_map_type type, const char* name, __u32 key_bytes, __u32 value_bytes, __u32 entries,
             const bpf_map_create_opts* options),
            type, name, key_bytes, value_bytes, entries, options)
NETSUM_LATE(bpf, int, bpf_map_delete_elem, (int map, const void* key), map, key)
NETSUM_LATE(bpf, int, bpf_map_lookup_elem, (int map, const void* key, void* value), map, key, value)
NETSUM_LATE(bpf, int, bpf_map_update_elem, (int map, const void* key, const void* value, __u64 flags), map, key, value,
            flags)
NETSUM_LATE(bpf, void, bpf_object__close, (bpf_object * object), object)
NETSUM_LATE(bpf, bpf_map*, bpf_object__find_map_by_name, (const bpf_object* object, const char* name), object, name)
NETSUM_LATE(bpf, int, bpf_object__find_map_fd_by_name, (const bpf_object* object, const char* name), object, name)
NETSUM_LATE(bpf, bpf_program*, bpf_object__find_program_by_name, (const bpf_object* object, const char* name), object, name)
NETSUM_LATE(bpf, int, bpf_object__load, (bpf_object * object), object)
NETSUM_LATE(bpf, bpf_object*, bpf_object__open_mem,
            (const void* object, std::size_t bytes, const bpf_object_open_opts* options), object, bytes, options)
NETSUM_LATE(bpf, int, bpf_prog_test_run_opts, (int program, bpf_test_run_opts* options), program, options)
NETSUM_LATE(bpf, bpf_link*, bpf_program__attach_xdp, (const bpf_program* program, int interface), program, interface)
NETSUM_LATE(bpf, int, bpf_program__fd, (const bpf_program* program), program)
NETSUM_LATE(bpf, int, bpf_xdp_query, (int interface, int flags, bpf_xdp_query_opts* options), interface, flags, options)
NETSUM_LATE(bpf, int, libbpf_num_possible_cpus, ())
NETSUM_LATE(bpf, libbpf_print_fn_t, libbpf_set_print, (libbpf_print_fn_t print), print)
NETSUM_LATE(xdp, libxdp_print_fn_t, libxdp_set_print, (libxdp_print_fn_t print), print)
NETSUM_LATE(xdp, int, xsk_socket__create,
            (xsk_socket * *socket, const char* interface, __u32 queue, xsk_umem* memory, xsk_ring_cons* received,
             xsk_ring_prod* sent, const xsk_socket_config* config),
            socket, interface, queue, memory, received, sent, config)
NETSUM_LATE(xdp, void, xsk_socket__delete, (xsk_socket * socket), socket)
NETSUM_LATE(xdp, int, xsk_socket__fd, (const xsk_socket* socket), socket)
NETSUM_LATE(xdp, int, xsk_umem__create,
            (xsk_umem * *memory, void* begin, __u64 bytes, xsk_ring_prod* filled, xsk_ring_cons* completed,
             const xsk_umem_config* config),
            memory, begin, bytes, filled, completed, config)
NETSUM_LATE(xdp, int, xsk_umem__delete, (xsk_umem * memory), memory)
}
#pragma GCC visibility pop
