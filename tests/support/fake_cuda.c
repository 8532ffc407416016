// A CUDA driver that runs nothing and remembers what it was asked: for tests without a GPU.
#include <stdlib.h>
#include <string.h>

typedef unsigned long long u64;
enum { MOST = 64 };
struct Launch { char name[128]; u64 programs, threads, shared, stream, context, early, values[MOST]; };
struct Attribute { unsigned id, padding; union { int number; char bytes[64]; } value; };
struct Config { unsigned grid[3], block[3], shared; void* stream; const struct Attribute* attributes; unsigned count; };
struct Module { char name[128]; int attribute, value; };

static struct Launch launches[4096];
static int launched, loaded, current = 0, depth = 0, failure = 0, slots = 0;
static void* stack[64];

void fake_reset(void) { launched = loaded = depth = failure = 0; }
void fake_fail(int code) { failure = code; }
void fake_slots(int count) { slots = count; }
void fake_current(u64 context) { depth = 0, stack[depth++] = (void*)context; }
int fake_launched(void) { return launched; }
int fake_loaded(void) { return loaded; }
const struct Launch* fake_launch(int k) { return &launches[k]; }

int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = (void*)(u64)(1000 + device), 0; }
int cuCtxGetCurrent(void** context) { return *context = depth ? stack[depth - 1] : 0, 0; }
int cuCtxPushCurrent_v2(void* context) { return stack[depth++] = context, 0; }
int cuCtxPopCurrent_v2(void** context) { return *context = stack[--depth], 0; }
int cuModuleLoadData(void** module, const void* image) {
  if (memcmp(image, "\x7f" "ELF", 4)) return 200;
  return ++loaded, *module = calloc(1, sizeof(struct Module)), 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  strncpy(((struct Module*)module)->name, name, 127);
  return *function = module, 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  struct Module* module = function;
  return module->attribute = attribute, module->value = value, value > 232448;
}
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz,
                   unsigned shared, void* stream, void** arguments, void** extra) {
  if (failure) return failure;
  struct Launch* launch = &launches[launched++ % 4096];
  strncpy(launch->name, ((struct Module*)function)->name, 127);
  launch->programs = (u64)x * y * z, launch->threads = (u64)tx * ty * tz, launch->shared = shared;
  launch->stream = (u64)stream, launch->early = 0, launch->context = (u64)(depth ? stack[depth - 1] : 0);
  for (int k = 0; k < slots; ++k) memcpy(&launch->values[k], arguments[k], 8);
  return 0;
}
int cuLaunchKernelEx(const struct Config* config, void* function, void** arguments, void** extra) {
  const unsigned *grid = config->grid, *block = config->block;
  const int code = cuLaunchKernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], config->shared,
                                  config->stream, arguments, extra);
  if (!code) launches[(launched - 1) % 4096].early = config->count == 1 && config->attributes->id == 6 && config->attributes->value.number;
  return code;
}
