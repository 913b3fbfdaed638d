// A network plugin of NCCL's in one version, VERSION, that does nothing and notes its calls. nccl_plugin.py compiles it.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_PARTS (VERSION >= 12 ? 8 : 4)
#if VERSION == 8
typedef int length;
#else
typedef size_t length;
#endif
#if VERSION >= 10
#define EVENT , void* event
#define EVENTS , void** events
#else
#define EVENT
#define EVENTS
#endif
#if VERSION >= 11
#define CONTEXT void *context,
static int own_context;
#else
#define CONTEXT
#endif

static char calls[1 << 14];
const char* fake_calls(void) { return calls; }

static void note(const char* form, ...) {
  const size_t used = strlen(calls);
  va_list arguments;
  va_start(arguments, form);
  vsnprintf(calls + used, sizeof calls - used, form, arguments);
  va_end(arguments);
  strncat(calls, "\n", sizeof calls - strlen(calls) - 1);
}

// Values by which a test knows that they come from here.
static int listener, sender, receiver, request, registration;

typedef struct {
  int count, devices[MOST_PARTS];
} parts;

typedef struct {
  const char *name, *path;
  uint64_t guid;
  int memory, global_registration;
#if VERSION >= 9
  int force_flush;
#endif
  int speed, port;
  float latency;
  int most_connections, most_receives, offload_type, offload_version;
#if VERSION >= 9
  parts its_parts;
  size_t most_bytes, most_collective_bytes;
#endif
#if VERSION >= 11
  int most_merged_requests;
#endif
#if VERSION >= 12
  int16_t rail, plane;
#endif
} properties;

static int init_fails(void) {
  return getenv("FAKE_INIT_FAILS") != NULL ? 2 : 0;
}
#if VERSION >= 11
static int init(void** context, uint64_t id, int* config, void* logger, void* profiler) {
  (void)profiler;
  note("init %d %d %d", (int)id, config == NULL ? -2 : *config, logger != NULL);
  *context = &own_context;
  return init_fails();
}
#elif VERSION == 10
static int init(void* logger, void* profiler) {
  (void)profiler;
  note("init %d", logger != NULL);
  return init_fails();
}
#else
static int init(void* logger) {
  note("init %d", logger != NULL);
  return init_fails();
}
#endif
static int devices(int* count) {
  note("devices");
  *count = 3;
  return 0;
}
static int get_properties(int device, properties* found) {
  note("getProperties %d", device);
  memset(found, 0, sizeof *found);
  found->name = device == 2 ? "fake2" : "fake";
  found->path = "/sys/fake";
  found->guid = 77;
  found->memory = 3;
  found->global_registration = 1;
  found->speed = 400000;
  found->port = 5;
  found->latency = 1.5f;
  found->most_connections = 99;
  found->most_receives = 4;
  found->offload_version = 6;
#if VERSION >= 9
  found->force_flush = 1;
  found->its_parts.count = 2;
  found->its_parts.devices[0] = 1;
  found->its_parts.devices[1] = 2;
  found->most_bytes = (size_t)1 << 33;
  found->most_collective_bytes = 12345;
#endif
#if VERSION >= 11
  found->most_merged_requests = 8;
#endif
#if VERSION >= 12
  found->rail = 3;
  found->plane = 4;
#endif
  return 0;
}
static int listen_on(CONTEXT int device, void* handle, void** made) {
#if VERSION >= 11
  note("context %d", context == &own_context);
#endif
  note("listen %d", device);
  strcpy(handle, "fake handle");
  *made = &listener;
  return 0;
}
#if VERSION == 10
static int connect_to(int device, int* config, void* handle, void** made, void** offload) {
  note("config %d", config == NULL ? -2 : *config);
#else
static int connect_to(CONTEXT int device, void* handle, void** made, void** offload) {
#endif
#if VERSION >= 11
  note("context %d", context == &own_context);
#endif
  note("connect %d %s %d", device, (const char*)handle, offload != NULL);
  *made = &sender;
  return 0;
}
static int accept_from(void* from, void** made, void** offload) {
  note("accept %d %d", from == &listener, offload != NULL);
  *made = &receiver;
  return 0;
}
static int register_memory(void* owner, void* data, size_t bytes, int memory, void** made) {
  (void)data;
  note("regMr %d %zu %d", owner == &sender, bytes, memory);
  *made = &registration;
  return 0;
}
static int register_dma_buf(void* owner, void* data, size_t bytes, int memory, uint64_t offset, int file, void** made) {
  (void)owner, (void)data;
  note("regMrDmaBuf %zu %d %d %d", bytes, memory, (int)offset, file);
  *made = &registration;
  return 0;
}
static int deregister(void* owner, void* made) {
  note("deregMr %d %d", owner == &sender, made == &registration);
  return 0;
}
static int isend(void* to, void* data, length bytes, int tag, void* made EVENT, void** begun) {
  note("isend %d %s %zu %d %d", to == &sender, (const char*)data, (size_t)bytes, tag, made == &registration);
#if VERSION >= 10
  note("event %d", (int)(intptr_t)event);
#endif
  *begun = &request;
  return 0;
}
static int irecv(void* from, int count, void** data, length* bytes, int* tags, void** made EVENTS, void** begun) {
  note("irecv %d %d", from == &receiver, count);
  for (int i = 0; i < count; ++i) note("%s %zu %d %d", (const char*)data[i], (size_t)bytes[i], tags[i], made[i] == &registration);
#if VERSION >= 10
  note("event %d", (int)(intptr_t)events[0]);
#endif
  note("wanted %d", (int)(intptr_t)*begun);
  *begun = &request;
  return 0;
}
static int iflush(void* from, int count, void** data, int* bytes, void** made, void** begun) {
  (void)data, (void)bytes, (void)made;
  note("iflush %d %d", from == &receiver, count);
  *begun = NULL;
  return 0;
}
static int test(void* begun, int* done, int* bytes) {
  note("test %d", begun == &request);
  *done = 1;
  *bytes = 42;
  return 0;
}
static int close_send(void* made) { return note("closeSend %d", made == &sender), 0; }
static int close_receive(void* made) { return note("closeRecv %d", made == &receiver), 0; }
static int close_listen(void* made) { return note("closeListen %d", made == &listener), 6; }  // as some error
#if VERSION >= 9
static int make_virtual(int* device, parts* wanted) {
  note("makeVDevice %d %d", wanted->count, wanted->devices[1]);
  *device = 3;
  return 0;
}
#endif
#if VERSION >= 11
static int finalize(void* context) { return note("finalize %d", context == &own_context), 0; }
static int set_attributes(void* context, void* attributes) {
  (void)attributes;
  return note("setNetAttr %d", context == &own_context), 0;
}
#endif

// The members in the order of NCCL's table.
typedef struct {
  const char* name;
  void* functions[22];
} table;
#define NAMED(version) ncclNetPlugin_v##version
#define NAMED_AS(version) NAMED(version)
const table NAMED_AS(VERSION) = {
    "fake",
    {(void*)init, (void*)devices, (void*)get_properties, (void*)listen_on, (void*)connect_to, (void*)accept_from, (void*)register_memory,
     (void*)register_dma_buf, (void*)deregister, (void*)isend, (void*)irecv, (void*)iflush, (void*)test, (void*)close_send,
     (void*)close_receive, (void*)close_listen, NULL, NULL,
#if VERSION >= 9
     (void*)make_virtual,
#endif
#if VERSION >= 11
     (void*)finalize, (void*)set_attributes,
#endif
    }};
