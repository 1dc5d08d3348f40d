// Tensors of a running torch through its stable C interface (torch/csrc/inductor/aoti_torch/c/shim.h), without its headers:
// the same library serves every version of torch whose functions have these names (2.11 to 2.15), and every Python.

// An AtenTensorHandle is the address of an at::Tensor, which is one pointer to a TensorImpl: what `tensor._cdata` returns.
struct Torch {
  int32_t (*sizes)(void*, int64_t**);
  int32_t (*strides)(void*, int64_t**);
  int32_t (*dim)(void*, int64_t*);
  int32_t (*data_ptr)(void*, void**);
  int32_t (*dtype)(void*, int32_t*);
  int32_t (*device_type)(void*, int32_t*);
  int32_t (*device_index)(void*, int32_t*);
  int32_t (*empty_strided)(int64_t, int64_t const*, int64_t const*, int32_t, int32_t, int32_t, void**);
  int32_t (*delete_tensor)(void*);
  int32_t (*create_guard)(int32_t, void**);
  int32_t (*delete_guard)(void*);
  int32_t (*current_device)(int32_t*);
  int32_t (*current_stream)(int32_t, void**);  // null in a build without CUDA
  int32_t cuda, uint8, int32, bfloat16, float8_e4m3fn, float32;
  bool ready;

  // Returns the name of what this torch lacks, null if it lacks nothing.
  char const* load() {
    // In a program that has torch's functions under another name, or its own, they are searched everywhere.
    void* const core = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    if (char const* name = find(core ? core : RTLD_DEFAULT)) return name;
    ready = true;
    if (void* const device = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD)) {
      take(device, "aoti_torch_get_current_cuda_stream", current_stream);
    }
    return nullptr;
  }

 private:
  template <class Function>
  static bool take(void* library, char const* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
  }

  static bool number(void* library, char const* name, int32_t& value) {
    int32_t (*function)();
    if (!take(library, name, function)) return false;
    value = function();
    return true;
  }

  char const* find(void* core) {
    current_stream = nullptr;
    if (!take(core, "aoti_torch_get_sizes", sizes)) return "aoti_torch_get_sizes";
    if (!take(core, "aoti_torch_get_strides", strides)) return "aoti_torch_get_strides";
    if (!take(core, "aoti_torch_get_dim", dim)) return "aoti_torch_get_dim";
    if (!take(core, "aoti_torch_get_data_ptr", data_ptr)) return "aoti_torch_get_data_ptr";
    if (!take(core, "aoti_torch_get_dtype", dtype)) return "aoti_torch_get_dtype";
    if (!take(core, "aoti_torch_get_device_type", device_type)) return "aoti_torch_get_device_type";
    if (!take(core, "aoti_torch_get_device_index", device_index)) return "aoti_torch_get_device_index";
    if (!take(core, "aoti_torch_empty_strided", empty_strided)) return "aoti_torch_empty_strided";
    if (!take(core, "aoti_torch_delete_tensor_object", delete_tensor)) return "aoti_torch_delete_tensor_object";
    if (!take(core, "aoti_torch_create_device_guard", create_guard)) return "aoti_torch_create_device_guard";
    if (!take(core, "aoti_torch_delete_device_guard", delete_guard)) return "aoti_torch_delete_device_guard";
    if (!take(core, "aoti_torch_get_current_device_index", current_device)) return "aoti_torch_get_current_device_index";
    if (!number(core, "aoti_torch_device_type_cuda", cuda)) return "aoti_torch_device_type_cuda";
    if (!number(core, "aoti_torch_dtype_uint8", uint8)) return "aoti_torch_dtype_uint8";
    if (!number(core, "aoti_torch_dtype_int32", int32)) return "aoti_torch_dtype_int32";
    if (!number(core, "aoti_torch_dtype_bfloat16", bfloat16)) return "aoti_torch_dtype_bfloat16";
    if (!number(core, "aoti_torch_dtype_float8_e4m3fn", float8_e4m3fn)) return "aoti_torch_dtype_float8_e4m3fn";
    return number(core, "aoti_torch_dtype_float32", float32) ? nullptr : "aoti_torch_dtype_float32";
  }
};

static Torch torch_;

// What a call needs of a tensor; borrowed from it.
struct View {
  bool given = false;
  int64_t const* size = nullptr;
  int64_t const* stride = nullptr;
  void* pointer = nullptr;
  int64_t dim = 0;
  int32_t dtype = 0, device_type = 0, device = 0;

  // Takes an AtenTensorHandle.
  bool read(void* handle) {
    if (!torch_.ready) return false;
    int64_t *extents, *steps;
    if (torch_.dim(handle, &dim) || torch_.sizes(handle, &extents) || torch_.strides(handle, &steps)) return false;
    if (torch_.data_ptr(handle, &pointer) || torch_.dtype(handle, &dtype)) return false;
    if (torch_.device_type(handle, &device_type) || torch_.device_index(handle, &device)) return false;
    size = extents, stride = steps, given = true;
    return true;
  }

  // Counted from the last dimension, which is 1.
  int64_t extent(int64_t from_last) const { return size[dim - from_last]; }
  int64_t step(int64_t from_last) const { return stride[dim - from_last]; }

  int64_t numel() const {
    int64_t count = 1;
    for (int64_t at = 0; at < dim; ++at) count *= size[at];
    return count;
  }

  // Row-major without gaps; the stride of an extent of 1 may be anything.
  bool dense() const {
    int64_t expected = 1;
    for (int64_t at = dim - 1; at >= 0; --at) {
      if (size[at] != 1 && stride[at] != expected) return false;
      expected *= size[at];
    }
    return true;
  }

  bool beside(View const& other) const { return device_type == other.device_type && device == other.device; }
};

// Scratch memory from torch's allocator, whose order of use is that of the current stream.
class Scratch {
 public:
  Scratch() = default;
  Scratch(Scratch const&) = delete;
  ~Scratch() {
    if (handle_) torch_.delete_tensor(handle_);
  }

  // Returns null if there is none, with torch's own error set by the caller's slow path.
  void* allocate(int64_t bytes, View const& like) {
    int64_t const stride = 1;
    if (torch_.empty_strided(1, &bytes, &stride, torch_.uint8, like.device_type, like.device, &handle_)) return nullptr;
    void* pointer = nullptr;
    return torch_.data_ptr(handle_, &pointer) ? nullptr : pointer;
  }

 private:
  void* handle_ = nullptr;
};

// Makes the device of a call the current one, if it is not.
class DeviceGuard {
 public:
  explicit DeviceGuard(View const& on) {
    int32_t current = -1;
    if (on.device_type != torch_.cuda) return;
    if (torch_.current_device(&current) || current == on.device) return;
    if (torch_.create_guard(on.device, &guard_)) guard_ = nullptr;
  }
  DeviceGuard(DeviceGuard const&) = delete;
  ~DeviceGuard() {
    if (guard_) torch_.delete_guard(guard_);
  }

 private:
  void* guard_ = nullptr;
};
