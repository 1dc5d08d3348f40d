/* A CUDA runtime without a GPU: the functions that host code made by nvcc calls, with launches handed to a callback.
 *
 * It is linked in place of libcudart.so and has another name and other symbol versions, so that both can be in one
 * process. A device pointer is a host pointer; work is done when it is started. A tensor map holds the arguments it
 * was made of (struct Map, and LAYOUT in ../tensor/tensor_map.py). What the runtime's documentation says fails, fails
 * here with the same error; after a fault of a kernel every call fails with its error, as after a fault of a GPU.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { unsigned x, y, z; } dim3;
typedef int Error;
enum {
  kSuccess = 0,
  kInvalidValue = 1,
  kInvalidConfiguration = 9,
  kInvalidMemcpyDirection = 21,
  kInvalidDeviceFunction = 98,
  kInvalidDevice = 101,
  kIllegalAddress = 700,
  kInvalidClusterSize = 912,
  kUnknown = 999
};

typedef struct Function {
  void const *host;
  char const *name;
  void const *image;
  int dynamic_shared, any_cluster;
  struct Function *next;
} Function;

typedef int (*Launch)(char const *name, void const *image, unsigned const *extents, uint64_t shared, void **arguments);
/* Asked before device memory is set or copied; returns an error if it may not be touched. */
typedef int (*Touch)(char const *what, void const *address, size_t count, int written);

#define API __attribute__((visibility("default")))
#define ATTRIBUTES 256
enum { kMaxThreads = 1, kMaxGridX = 5, kMaxGridY = 6, kMaxGridZ = 7, kStaticShared = 8, kThreadsPerMultiprocessor = 39,
       kSharedPerMultiprocessor = 81, kOptinShared = 97, kBlocksPerMultiprocessor = 106, kReservedShared = 111,
       kClusterLaunch = 120 };

enum { kOnHost = 0, kToDevice = 1, kFromDevice = 2, kOnDevice = 3 }; /* cudaMemcpyKind; cudaMemcpyDefault is not known here */

static Function *functions;
static Launch launcher;
static Touch toucher;
static int attributes[ATTRIBUTES];
static Error last, sticky;
static struct { dim3 grid, block; size_t shared; void *stream; } pushed;

static Error fail(Error error) { return last = error; }
#define CHECK_CONTEXT if (sticky) return fail(sticky)

/* For the emulator. */
API void emulator_on_launch(Launch callback) { launcher = callback; }
API void emulator_on_touch(Touch callback) { toucher = callback; }
API void emulator_set_attribute(int attribute, int value) { attributes[attribute] = value; }
API void emulator_reset(void) { last = sticky = kSuccess; }

/* Registration, by constructors of a kernel's library. */
API void **__cudaRegisterFatBinary(void *wrapper) {
  void **handle = malloc(sizeof(void *));
  *handle = *(void **)((char *)wrapper + 8);
  return handle;
}
API void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
API void __cudaUnregisterFatBinary(void **handle) {
  for (Function **place = &functions; *place;) {
    Function *function = *place;
    if (function->image == *handle) {
      *place = function->next;
      free(function);
    } else {
      place = &function->next;
    }
  }
  free(handle);
}
API void __cudaRegisterFunction(void **handle, char const *host, char *device, char const *name, int limit, void *tid,
                                void *bid, void *block, void *grid, int *warp) {
  Function *function = calloc(1, sizeof *function);
  function->host = host, function->name = name, function->image = *handle, function->next = functions;
  functions = function;
}
API void __cudaRegisterVar(void **handle, char *host, char *address, char const *name, int ext, size_t size,
                           int constant, int global) {}

static Function *find(void const *host) {
  for (Function *function = functions; function; function = function->next)
    if (function->host == host) return function;
  return NULL;
}

/* Launches. */
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  pushed.grid = grid, pushed.block = block, pushed.shared = shared, pushed.stream = stream;
  return 0;
}
API Error __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  *grid = pushed.grid, *block = pushed.block, *shared = pushed.shared, *(void **)stream = pushed.stream;
  return kSuccess;
}
API Error __cudaGetKernel(void **kernel, void const *host) {
  *kernel = find(host);
  return *kernel ? kSuccess : fail(kInvalidDeviceFunction);
}
static Error start(Function *function, dim3 grid, dim3 block, dim3 cluster, size_t shared, void **arguments) {
  CHECK_CONTEXT;
  if (!function) return fail(kInvalidDeviceFunction);
  unsigned const extents[9] = {grid.x, grid.y, grid.z, block.x, block.y, block.z, cluster.x, cluster.y, cluster.z};
  for (int i = 0; i < 9; ++i)
    if (!extents[i]) return fail(kInvalidConfiguration);
  for (int i = 0; i < 3; ++i)
    if (extents[i] > (unsigned)attributes[kMaxGridX + i] || extents[3 + i] > (unsigned)attributes[2 + i] ||
        extents[i] % extents[6 + i])
      return fail(kInvalidConfiguration);
  if ((uint64_t)block.x * block.y * block.z > (uint64_t)attributes[kMaxThreads]) return fail(kInvalidConfiguration);
  unsigned const blocks = cluster.x * cluster.y * cluster.z;
  if (blocks > 1 && !attributes[kClusterLaunch]) return fail(kInvalidConfiguration);
  if (blocks > (function->any_cluster ? 16u : 8u)) return fail(kInvalidClusterSize);
  size_t const most = function->dynamic_shared ? (size_t)function->dynamic_shared : (size_t)attributes[kStaticShared];
  if (shared > most) return fail(kInvalidValue);
  if (!launcher) return fail(kUnknown);
  Error const error = launcher(function->name, function->image, extents, shared, arguments);
  if (error >= kIllegalAddress && error < 800) sticky = error;
  return error ? fail(error) : kSuccess;
}
API Error __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream) {
  return start(kernel, grid, block, (dim3){1, 1, 1}, shared, arguments);
}
API Error cudaLaunchKernel(void const *host, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream) {
  return start(find(host), grid, block, (dim3){1, 1, 1}, shared, arguments);
}
typedef struct { int id; char pad[4]; union { char bytes[64]; dim3 cluster; int value; } value; } Attribute;
typedef struct { dim3 grid, block; size_t shared; void *stream; Attribute *attributes; unsigned count; } Config;
enum { kClusterDimension = 4 };
API Error cudaLaunchKernelExC(Config const *config, void const *host, void **arguments) {
  dim3 cluster = {1, 1, 1};
  for (unsigned i = 0; i < config->count; ++i)
    if (config->attributes[i].id == kClusterDimension) cluster = config->attributes[i].value.cluster;
  return start(find(host), config->grid, config->block, cluster, config->shared, arguments);
}
enum { kMaxDynamicShared = 8, kPreferredCarveout = 9, kAnyCluster = 14, kClusterPolicy = 15 };
API Error cudaFuncSetAttribute(void const *host, int attribute, int value) {
  CHECK_CONTEXT;
  Function *function = find(host);
  if (!function) return fail(kInvalidDeviceFunction);
  if (attribute == kMaxDynamicShared) {
    if (value < 0 || value > attributes[kOptinShared]) return fail(kInvalidValue);
    function->dynamic_shared = value;
  } else if (attribute == kAnyCluster) {
    function->any_cluster = value;
  } else if (attribute != kPreferredCarveout && attribute != kClusterPolicy) {
    return fail(kInvalidValue);
  }
  return kSuccess;
}
API Error cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, void const *host, int threads,
                                                                 size_t shared, unsigned flags) {
  CHECK_CONTEXT;
  if (!find(host)) return fail(kInvalidDeviceFunction);
  if (threads < 1) return fail(kInvalidValue);
  /* Registers are unknown: this is PTX. */
  int const by_threads = attributes[kThreadsPerMultiprocessor] / threads;
  int const by_shared = attributes[kSharedPerMultiprocessor] / (int)(shared + attributes[kReservedShared]);
  int const most = attributes[kBlocksPerMultiprocessor];
  *blocks = by_threads < by_shared ? by_threads : by_shared;
  if (*blocks > most) *blocks = most;
  return kSuccess;
}
API Error cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void const *host, int threads, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host, threads, shared, 0);
}

/* The device. */
API Error cudaGetDevice(int *device) {
  *device = 0;
  return kSuccess;
}
API Error cudaSetDevice(int device) { return device == 0 ? kSuccess : fail(kInvalidDevice); }
API Error cudaGetDeviceCount(int *count) {
  *count = 1;
  return kSuccess;
}
API Error cudaDeviceGetAttribute(int *value, int attribute, int device) {
  if (device) return fail(kInvalidDevice);
  if (attribute < 1 || attribute >= ATTRIBUTES) return fail(kInvalidValue);
  *value = attributes[attribute];
  return kSuccess;
}
API Error cudaGetLastError(void) {
  Error const error = last;
  last = sticky;
  return error;
}
API Error cudaPeekAtLastError(void) { return last; }
API char const *cudaGetErrorString(Error error) { return error ? "an error of the emulated CUDA runtime" : "no error"; }
API char const *cudaGetErrorName(Error error) { return error ? "cudaError" : "cudaSuccess"; }
static Error touch(char const *what, void const *address, size_t count, int written) {
  return toucher && count ? toucher(what, address, count, written) : kSuccess;
}
API Error cudaMemsetAsync(void *to, int value, size_t count, void *stream) {
  CHECK_CONTEXT;
  Error const error = touch("cudaMemsetAsync", to, count, 1);
  if (error) return fail(error);
  memset(to, value, count);
  return kSuccess;
}
API Error cudaMemcpyAsync(void *to, void const *from, size_t count, int kind, void *stream) {
  CHECK_CONTEXT;
  if (kind < kOnHost || kind > kOnDevice) return fail(kInvalidMemcpyDirection);
  Error error = kind == kToDevice || kind == kOnDevice ? touch("cudaMemcpyAsync", to, count, 1) : kSuccess;
  if (!error && (kind == kFromDevice || kind == kOnDevice)) error = touch("cudaMemcpyAsync", from, count, 0);
  if (error) return fail(error);
  memmove(to, from, count);
  return kSuccess;
}
API Error cudaStreamSynchronize(void *stream) { return sticky ? fail(sticky) : kSuccess; }
API Error cudaDeviceSynchronize(void) { return sticky ? fail(sticky) : kSuccess; }

/* Tensor maps, by the rules of cuTensorMapEncodeTiled in the driver's documentation. */
typedef struct {
  uint64_t address, stride[4];
  uint32_t size[5];
  uint16_t box[5];
  uint8_t step[5], type, rank, interleave, swizzle, fill, rest[4];
  uint32_t magic;
  char pad[40];
} __attribute__((packed)) Map;
_Static_assert(sizeof(Map) == 128, "a tensor map has 128 bytes");

static int refuse(char const *why) {
  fprintf(stderr, "cuTensorMapEncodeTiled: %s\n", why);
  return kInvalidValue;
}
static int encode(void *to, int type, uint32_t rank, void *address, uint64_t const *size, uint64_t const *stride,
                  uint32_t const *box, uint32_t const *step, int interleave, int swizzle, int promotion, int fill) {
  static int const bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
  static int const width[] = {0, 32, 64, 128, 128};
  Map map = {0};
  if ((uintptr_t)to % 64) return refuse("the map is not aligned to 64 bytes");
  if (type < 0 || type > 12) return refuse("the type is not known");
  if (rank < 1 || rank > 5) return refuse("the rank is not 1 to 5");
  if ((uintptr_t)address % 16 || !address) return refuse("the address is no multiple of 16");
  if (interleave) return refuse("interleaving is not known here");
  if (swizzle < 0 || swizzle > 4) return refuse("the swizzle is not known here");
  int const item = bytes[type];
  map.address = (uint64_t)address, map.type = type, map.rank = rank, map.swizzle = swizzle, map.fill = fill;
  for (uint32_t i = 0; i < rank; ++i) {
    if (size[i] < 1 || size[i] > (1ull << 32)) return refuse("a size is not 1 to 2^32");
    if (box[i] < 1 || box[i] > 256) return refuse("an extent of the box is not 1 to 256");
    if (step[i] < 1 || step[i] > 8) return refuse("an element stride is not 1 to 8");
    map.size[i] = (uint32_t)size[i], map.box[i] = box[i], map.step[i] = step[i];
    if (i + 1 < rank) {
      if (stride[i] % 16 || stride[i] >= (1ull << 40)) return refuse("a stride is no multiple of 16 below 2^40");
      map.stride[i] = stride[i];
    }
  }
  if (box[0] * item % 16) return refuse("a row of the box is no multiple of 16 bytes");
  if (swizzle && (int)(box[0] * item) > width[swizzle]) return refuse("a row of the box is wider than the swizzle");
  map.magic = 0x7E4507A9;
  /* Each eighth byte lies in the same 16 bytes (../tensor/tensor_map.py). */
  for (size_t i = 0; i < sizeof map; ++i) ((char *)to)[i % 8 * 16 + i / 8] = ((char const *)&map)[i];
  return kSuccess;
}
static int no_im2col(void) { return refuse("im2col is not known here"); }

API Error cudaGetDriverEntryPointByVersion(char const *name, void **function, unsigned version,
                                           unsigned long long flags, int *status) {
  *function = !strcmp(name, "cuTensorMapEncodeTiled")    ? (void *)encode
              : !strcmp(name, "cuTensorMapEncodeIm2col") ? (void *)no_im2col
                                                         : NULL;
  if (status) *status = *function ? 0 : 1;
  return *function ? kSuccess : fail(kInvalidValue);
}
API Error cudaGetDriverEntryPoint(char const *name, void **function, unsigned long long flags, int *status) {
  return cudaGetDriverEntryPointByVersion(name, function, 13000, flags, status);
}
