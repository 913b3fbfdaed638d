// The calls of libibverbs that netsum makes, each of which loads it. The header's inline functions call these, too.
#pragma GCC visibility push(hidden)
#include <infiniband/verbs.h>

#include "transport/system/late_library.h"

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

namespace {
constinit netsum::transport::LateLibrary verbs("libibverbs.so.1", "libibverbs1");
}  // namespace

extern "C" {
NETSUM_LATE(verbs, int, _ibv_query_gid_ex,
            (ibv_context * context, std::uint32_t port, std::uint32_t index, ibv_gid_entry* entry, std::uint32_t flags,
             std::size_t bytes),
            context, port, index, entry, flags, bytes)
NETSUM_LATE(verbs, void, ibv_ack_async_event, (ibv_async_event * event), event)
NETSUM_LATE(verbs, void, ibv_ack_cq_events, (ibv_cq * queue, unsigned int events), queue, events)
NETSUM_LATE(verbs, ibv_pd*, ibv_alloc_pd, (ibv_context * context), context)
NETSUM_LATE(verbs, int, ibv_close_device, (ibv_context * context), context)
NETSUM_LATE(verbs, ibv_comp_channel*, ibv_create_comp_channel, (ibv_context * context), context)
NETSUM_LATE(verbs, ibv_cq*, ibv_create_cq,
            (ibv_context * context, int entries, void* user, ibv_comp_channel* channel, int vector), context, entries, user,
            channel, vector)
NETSUM_LATE(verbs, ibv_qp*, ibv_create_qp, (ibv_pd * domain, ibv_qp_init_attr* attributes), domain, attributes)
NETSUM_LATE(verbs, int, ibv_dealloc_pd, (ibv_pd * domain), domain)
NETSUM_LATE(verbs, int, ibv_dereg_mr, (ibv_mr * region), region)
NETSUM_LATE(verbs, int, ibv_destroy_comp_channel, (ibv_comp_channel * channel), channel)
NETSUM_LATE(verbs, int, ibv_destroy_cq, (ibv_cq * queue), queue)
NETSUM_LATE(verbs, int, ibv_destroy_qp, (ibv_qp * pair), pair)
NETSUM_LATE(verbs, const char*, ibv_event_type_str, (ibv_event_type event), event)
NETSUM_LATE(verbs, void, ibv_free_device_list, (ibv_device * *list), list)
NETSUM_LATE(verbs, int, ibv_get_async_event, (ibv_context * context, ibv_async_event* event), context, event)
NETSUM_LATE(verbs, int, ibv_get_cq_event, (ibv_comp_channel * channel, ibv_cq** queue, void** user), channel, queue, user)
NETSUM_LATE(verbs, ibv_device**, ibv_get_device_list, (int* count), count)
NETSUM_LATE(verbs, const char*, ibv_get_device_name, (ibv_device * device), device)
NETSUM_LATE(verbs, int, ibv_modify_qp, (ibv_qp * pair, ibv_qp_attr* attributes, int mask), pair, attributes, mask)
NETSUM_LATE(verbs, ibv_context*, ibv_open_device, (ibv_device * device), device)
NETSUM_LATE(verbs, int, ibv_query_port, (ibv_context * context, std::uint8_t port, _compat_ibv_port_attr* attributes),
            context, port, attributes)
NETSUM_LATE(verbs, ibv_mr*, ibv_reg_mr, (ibv_pd * domain, void* begin, std::size_t bytes, int access), domain, begin, bytes,
            access)
NETSUM_LATE(verbs, ibv_mr*, ibv_reg_mr_iova2,
            (ibv_pd * domain, void* begin, std::size_t bytes, std::uint64_t address, unsigned int access), domain, begin,
            bytes, address, access)
NETSUM_LATE(verbs, const char*, ibv_wc_status_str, (ibv_wc_status status), status)
}
#pragma GCC visibility pop
