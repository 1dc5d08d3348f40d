// Call sites of compiled CUTLASS kernels in a program without Python. The kernel's library travels with the program.
//
//   launch_buf0({a, b}, buf0) ─► sizes, strides, pointers ─► the kernel's C function on the current stream
//        └── false: its library is missing, it refuses the tensors, or it does not start; ``why`` says which

// The C function of a library, loaded at the first call.
class Kernel {
 public:
  Kernel(char const* file, char const* folder, char const* symbol, int32_t sm_count)
      : file_(file), folder_(folder), symbol_(symbol), sm_count_(sm_count) {}

  // Returns null where there is none.
  Entry entry() {
    std::call_once(once_, [this] { load(); });
    return entry_;
  }

  std::string const& error() const { return error_; }
  char const* symbol() const { return symbol_; }

  // Returns how many multiprocessors a device has: the number of the compile's where CUDA does not say.
  int32_t sm_count(int32_t device) const {
    constexpr int kMultiProcessorCount = 16;  // cudaDevAttrMultiProcessorCount
    int value = 0;
    return attribute_ && attribute_(&value, kMultiProcessorCount, device) == 0 && value > 0 ? value : sm_count_;
  }

 private:
  // The library is beside this program in a package; where the program was compiled, it is in the folder it was copied to.
  void load() {
    Dl_info program;
    std::string path;
    if (dladdr(this, &program) && program.dli_fname) path = program.dli_fname;
    path = path.substr(0, path.rfind('/') + 1) + file_;
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) error_ = std::string("cannot be loaded: ") + dlerror();
    if (!library && *folder_) {
      path = std::string(folder_) + "/" + file_;
      library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    }
    if (!library) return;
    entry_ = reinterpret_cast<Entry>(dlsym(library, symbol_));
    attribute_ = reinterpret_cast<Attribute>(dlsym(library, "cudaDeviceGetAttribute"));
    error_ = entry_ ? "" : "is not in " + path;
  }

  using Attribute = int (*)(int*, int, int);
  char const *file_, *folder_, *symbol_;
  int32_t sm_count_;
  std::once_flag once_;
  Entry entry_ = nullptr;
  Attribute attribute_ = nullptr;
  std::string error_;
};

// Computes what needs no kernel: queries that see no key have the output 0 and the lse infinity, as in torch's flash attention
// and in the operators of Python. Returns false where there is none.
inline bool without_kernel(GemmSite const&, GemmCall const&, AtenTensorHandle const*, AtenTensorHandle) { return false; }
inline bool without_kernel(AttentionSite const& site, FmhaCall const& call, AtenTensorHandle const* operands,
                           AtenTensorHandle out) {
  if (call.seq_k || site.kind == AttentionSite::kBackward || aoti_torch_zero_(out)) return false;
  AtenTensorHandle const lse = site.kind == AttentionSite::kForward ? operands[3] : nullptr;
  return !lse || !aoti_torch_aten_fill__Scalar(lse, std::numeric_limits<double>::infinity());
}

// ``Spec`` is GemmSite or AttentionSite, ``Call`` its GemmCall or FmhaCall.
template <class Spec, class Call>
class CallSite {
 public:
  CallSite(Kernel& kernel, Spec const& spec, int32_t alignment) : kernel_(kernel), spec_(spec), alignment_(alignment) {}
  ~CallSite() {
    if (!kept_) return;
    Call call{};
    call.kept = &kept_;
    kernel_.entry()(kForget, &call, nullptr, nullptr);
  }

  // Handles of tensors, as torch's C functions take them; null for an operand that is not there. May be called by many
  // threads at once: one of them uses what the kernel has kept.
  bool operator()(std::initializer_list<AtenTensorHandle> operands, AtenTensorHandle output) {
    Entry const entry = kernel_.entry();
    if (!entry) return false;
    View views[kMostOperands], out;
    if (operands.size() > kMostOperands || !out.read(output)) return false;
    View* view = views;
    for (AtenTensorHandle const operand : operands) {
      if (operand && (!view->read(operand) || !view->beside(out))) return false;
      ++view;
    }
    Call call;
    std::memset(static_cast<void*>(&call), 0, sizeof call);  // the padding, too: a kernel compares calls
    if (!out.numel()) return true;
    if (!spec_.fill(call, views, out, kernel_.sm_count(out.device))) return false;
    if (!has_work(call)) return without_kernel(spec_, call, operands.begin(), output);
    return started(entry, call, nullptr, out, alignment_, [&](Call& ready, void* stream) { return run(entry, ready, stream); });
  }

  std::string why() const {
    std::string const what = kernel_.error().empty() ? "refuses these tensors, or did not start" : kernel_.error();
    return "inductor-plugin: " + std::string(kernel_.symbol()) + " " + what;
  }

  // Returns true once.
  bool warns() { return !warned_.exchange(true); }

 private:
  static constexpr size_t kMostOperands = 2 + 8;

  int32_t run(Entry entry, Call& call, void* stream) {
    bool const owns = !busy_.exchange(true);
    call.kept = owns ? &kept_ : nullptr;
    int32_t const status = entry(kRun, &call, nullptr, stream);
    if (owns) busy_ = false;
    return status;
  }

  Kernel& kernel_;
  Spec spec_;
  int32_t alignment_;
  void* kept_ = nullptr;
  std::atomic<bool> busy_{false}, warned_{false};
};

using ProductSite = CallSite<GemmSite, GemmCall>;
using AttentionCallSite = CallSite<AttentionSite, FmhaCall>;
