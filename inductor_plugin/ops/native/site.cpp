// Call sites of compiled CUTLASS kernels as Python callables: what generated code calls in place of an operator.
//
//   site(a, b, workspace, out=out) ─► sizes, strides, pointers ─► checks ─► the kernel's C function on the current stream
//        │ not bound, other tensors, refused, not started
//        └──► the slow path in Python: finds the kernel, says what is wrong, computes the library product
//
// A call reads its tensors, fills a struct on the stack and calls one function: nothing is looked up or hashed,
// and nothing is allocated but a workspace that generated code has not planned.

constexpr int32_t kMostArguments = 2 + 2 + 8;

static PyObject *tensor_type_, *parameter_type_, *cdata_;
static PyObject *profiler_, *is_enabled_, *range_type_;

struct Site {
  PyObject_HEAD
  Entry entry;         // null: not bound
  int32_t device;      // -1: the CPU, where tests run
  int32_t sm_count;
  void* kept;          // what the kernel has prepared for the last call
  int32_t dtypes[kMostArguments];  // of the arguments of the last call that the operator has run, -1 for None
  bool busy;           // a thread is in a call, without the GIL, and owns ``kept``; others keep nothing
  bool is_attention;
  GemmSite gemm;
  AttentionSite attention;
  PyObject* name;      // of its calls in a profile
  PyObject* slow;      // the same arguments
  PyObject* veto;      // null, or a function without arguments: True leaves a call to the slow path
};

static bool is_plain(PyObject* object) {
  PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  return type == tensor_type_ || type == parameter_type_;
}

static bool read(PyObject* object, View& view) {
  if (!is_plain(object)) return false;  // a subclass may mean anything: the dispatcher knows
  PyObject* const number = PyObject_GetAttr(object, cdata_);
  if (!number) return false;
  void* impl = PyLong_AsVoidPtr(number);
  Py_DECREF(number);
  return impl && view.read(&impl);
}

// Calls the kernel's function without the GIL: a launch waits where the device's queue is full, maybe for what another
// thread of Python has yet to launch.
template <class Call>
static int32_t launched(Site& site, Call& call, void* stream) {
  bool const owns = !site.busy;
  Entry const entry = site.entry;
  call.kept = owns ? &site.kept : nullptr;
  site.busy = true;
  PyThreadState* const state = PyEval_SaveThread();
  int32_t const status = entry(kRun, &call, nullptr, stream);
  PyEval_RestoreThread(state);
  if (owns) site.busy = false;
  return status;
}

static bool vetoed(Site const& site) {
  if (!site.veto) return false;
  PyObject* const answer = PyObject_CallNoArgs(site.veto);
  bool const yes = !answer || PyObject_IsTrue(answer) != 0;
  Py_XDECREF(answer);
  return yes;
}

static bool launch(Site& site, PyObject* const* arguments, Py_ssize_t count) {
  int32_t const operands = site.is_attention ? site.attention.arguments() : site.gemm.arguments();
  if (!site.entry || count != operands + 2 || count > kMostArguments) return false;
  View views[kMostArguments], out, workspace;
  if (!read(arguments[count - 1], out)) return false;
  if (out.device_type == torch_.cuda ? out.device != site.device : site.device != -1) return false;
  for (int32_t at = 0; at < operands; ++at) {
    if (site.is_attention && at == 3 && site.attention.kind == AttentionSite::kForward && arguments[at] == Py_None) continue;
    if (!read(arguments[at], views[at]) || !views[at].beside(out)) return false;
  }
  for (int32_t at = 0; at < operands; ++at) {
    if (site.dtypes[at] != (views[at].given ? views[at].dtype : -1)) return false;
  }
  if (site.dtypes[operands] != out.dtype) return false;
  bool const has_workspace = arguments[count - 2] != Py_None;
  if (has_workspace && !read(arguments[count - 2], workspace)) return false;
  View const* const memory = has_workspace ? &workspace : nullptr;
  auto const start = [&site](auto& call, void* stream) { return launched(site, call, stream); };
  if (site.is_attention) {
    FmhaCall call;
    std::memset(&call, 0, sizeof call);  // the padding, too: a kernel compares calls
    if (!site.attention.fill(call, views, out, site.sm_count) || vetoed(site)) return false;
    if (!has_work(call)) return false;
    return started(site.entry, call, memory, out, kAttentionAlignment, start);
  }
  GemmCall call;
  std::memset(&call, 0, sizeof call);
  if (!site.gemm.fill(call, views, out, site.sm_count)) return false;
  if (!has_work(call)) return false;
  return started(site.entry, call, memory, out, kProductAlignment, start);
}

// Keeps the dtypes of a call that the operator has accepted: only it knows those of the kernel.
static void keep_dtypes(Site& site, PyObject* const* arguments, Py_ssize_t count) {
  int32_t const operands = site.is_attention ? site.attention.arguments() : site.gemm.arguments();
  if (!site.entry || count != operands + 2 || count > kMostArguments) return;
  for (int32_t at = 0; at <= operands; ++at) {
    View view;
    PyObject* const tensor = arguments[at < operands ? at : count - 1];
    site.dtypes[at] = read(tensor, view) ? view.dtype : -1;
  }
  PyErr_Clear();
}

// A call's range while torch's profiler runs: it records what goes through the dispatcher, and a site does not.
class Range {
 public:
  explicit Range(Site const& site) {
    if (PyDict_GetItem(profiler_, is_enabled_) != Py_True) return;
    range_ = PyObject_CallFunctionObjArgs(range_type_, site.name, nullptr);
    PyObject* const entered = range_ ? PyObject_CallMethod(range_, "__enter__", nullptr) : nullptr;
    Py_XDECREF(entered);
    PyErr_Clear();
  }

  Range(Range const&) = delete;

  ~Range() {
    if (!range_) return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);  // of the call
    PyObject* const left = PyObject_CallMethod(range_, "__exit__", "OOO", Py_None, Py_None, Py_None);
    Py_XDECREF(left);
    Py_DECREF(range_);
    PyErr_Restore(type, value, trace);
  }

 private:
  PyObject* range_ = nullptr;
};

// Takes the output last, by its name; the values of named arguments follow the others.
static PyObject* site_launch(PyObject* self, PyObject* const* arguments, Py_ssize_t unnamed, PyObject* names) {
  Site& site = *reinterpret_cast<Site*>(self);
  if (!names || PyTuple_Size(names) != 1 || PyUnicode_CompareWithASCIIString(PyTuple_GetItem(names, 0), "out")) {
    return PyErr_Format(PyExc_TypeError, "a call site takes its operands, a workspace or None, and out=");
  }
  PyObject* const out = arguments[unnamed];
  Range const range(site);
  if (launch(site, arguments, unnamed + 1)) return Py_NewRef(out);
  PyErr_Clear();
  PyObject* const others = PyTuple_New(unnamed);
  for (Py_ssize_t at = 0; others && at < unnamed; ++at) PyTuple_SetItem(others, at, Py_NewRef(arguments[at]));
  PyObject* const named = others ? Py_BuildValue("{sO}", "out", out) : nullptr;
  PyObject* const result = named ? PyObject_Call(site.slow, others, named) : nullptr;
  Py_XDECREF(others);
  Py_XDECREF(named);
  if (result) keep_dtypes(site, arguments, unnamed + 1);
  return result;
}

// Lets a kernel free what it keeps, before another one is bound or the site goes.
static void forget(Site& site) {
  if (!site.entry || !site.kept) return;
  if (site.is_attention) {
    FmhaCall call{};
    call.kept = &site.kept;
    site.entry(kForget, &call, nullptr, nullptr);
  } else {
    GemmCall call{};
    call.kept = &site.kept;
    site.entry(kForget, &call, nullptr, nullptr);
  }
}

static PyObject* site_bind(PyObject* self, PyObject* arguments) {
  Site& site = *reinterpret_cast<Site*>(self);
  unsigned long long address;
  int device, sm_count;
  if (!PyArg_ParseTuple(arguments, "Kii", &address, &device, &sm_count)) return nullptr;
  if (reinterpret_cast<unsigned long long>(site.entry) == address && site.device == device) Py_RETURN_NONE;
  if (site.busy) Py_RETURN_NONE;  // another thread is in the kernel: the next slow call binds
  forget(site);
  site.device = device, site.sm_count = sm_count;
  site.entry = reinterpret_cast<Entry>(address);
  Py_RETURN_NONE;
}

static int site_traverse(PyObject* self, visitproc visit, void* arg) {
  Site& site = *reinterpret_cast<Site*>(self);
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(site.name);
  Py_VISIT(site.slow);
  Py_VISIT(site.veto);
  return 0;
}

static int site_clear(PyObject* self) {
  Site& site = *reinterpret_cast<Site*>(self);
  Py_CLEAR(site.name);
  Py_CLEAR(site.slow);
  Py_CLEAR(site.veto);
  return 0;
}

static void site_dealloc(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  forget(*reinterpret_cast<Site*>(self));
  site_clear(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

static PyMethodDef site_methods[] = {
    {"launch", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(site_launch)), METH_FASTCALL | METH_KEYWORDS,
     nullptr},
    {"bind", site_bind, METH_VARARGS, "bind(address, device, sm_count): call this kernel from now on; 0 for none."},
    {nullptr, nullptr, 0, nullptr}};

static PyType_Slot site_slots[] = {{Py_tp_methods, site_methods},
                                   {Py_tp_traverse, reinterpret_cast<void*>(site_traverse)},
                                   {Py_tp_clear, reinterpret_cast<void*>(site_clear)},
                                   {Py_tp_dealloc, reinterpret_cast<void*>(site_dealloc)},
                                   {0, nullptr}};

static PyType_Spec site_spec = {"inductor_plugin.ops.native.Site", sizeof(Site), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, site_slots};

static PyObject* site_type_;

static Site* new_site(PyObject* name, PyObject* slow, PyObject* veto) {
  PyTypeObject* const type = reinterpret_cast<PyTypeObject*>(site_type_);
  auto const allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  Site* const site = reinterpret_cast<Site*>(allocate(type, 0));
  if (!site) return nullptr;
  site->entry = nullptr;
  site->kept = nullptr;
  site->busy = false;
  site->name = Py_NewRef(name);
  site->slow = Py_NewRef(slow);
  site->veto = veto == Py_None ? nullptr : Py_NewRef(veto);
  return site;
}

static PyObject* product_site(PyObject*, PyObject* arguments) {
  PyObject *name, *slow;
  GemmSite spec{};
  if (!PyArg_ParseTuple(arguments, "UOiiiiiiiiiff|i", &name, &slow, &spec.kind, &spec.rows_a, &spec.rows_b, &spec.swizzle,
                        &spec.raster, &spec.split_k, &spec.bias, &spec.operands, &spec.aux, &spec.alpha, &spec.beta, &spec.scale)) {
    return nullptr;
  }
  if (spec.operands < 0 || spec.aux < 0 || spec.operands + spec.aux > 8) {
    return PyErr_Format(PyExc_ValueError, "an epilogue has at most 8 operands and further outputs, not %d",
                        spec.operands + spec.aux);
  }
  Site* const site = new_site(name, slow, Py_None);
  if (site) site->is_attention = false, site->gemm = spec;
  return reinterpret_cast<PyObject*>(site);
}

static PyObject* attention_site(PyObject*, PyObject* arguments) {
  PyObject *name, *slow, *veto;
  AttentionSite spec{};
  long long left, right;
  if (!PyArg_ParseTuple(arguments, "UOOifLLi", &name, &slow, &veto, &spec.kind, &spec.scale, &left, &right,
                        &spec.bottom_right)) {
    return nullptr;
  }
  spec.left = left, spec.right = right;
  Site* const site = new_site(name, slow, veto);
  if (site) site->is_attention = true, site->attention = spec;
  return reinterpret_cast<PyObject*>(site);
}

// Returns what is read of a tensor, so that Python can compare: (dim, size, stride, pointer, dtype, device type, index).
static PyObject* describe(PyObject*, PyObject* tensor) {
  View view;
  if (!read(tensor, view)) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "not a plain tensor");
    return nullptr;
  }
  PyObject* const size = PyTuple_New(view.dim);
  PyObject* const stride = PyTuple_New(view.dim);
  for (int64_t at = 0; size && stride && at < view.dim; ++at) {
    PyTuple_SetItem(size, at, PyLong_FromLongLong(view.size[at]));
    PyTuple_SetItem(stride, at, PyLong_FromLongLong(view.stride[at]));
  }
  return Py_BuildValue("NNKiii", size, stride, reinterpret_cast<unsigned long long>(view.pointer), view.dtype,
                       view.device_type, view.device);
}

static PyMethodDef functions[] = {{"product_site", product_site, METH_VARARGS, nullptr},
                                  {"attention_site", attention_site, METH_VARARGS, nullptr},
                                  {"describe", describe, METH_O, nullptr},
                                  {nullptr, nullptr, 0, nullptr}};

static PyModuleDef module_ = {PyModuleDef_HEAD_INIT, "inductor_plugin.ops.native.site", nullptr, -1, functions};

// Called through ctypes; returns the module. Its arguments are torch.Tensor, torch.nn.Parameter, the names of
// torch.autograd.profiler, and what makes a range of a name.
extern "C" __attribute__((visibility("default"))) PyObject* inductor_plugin_sites(PyObject* tensor, PyObject* parameter,
                                                                                  PyObject* profiler, PyObject* range) {
  if (char const* missing = torch_.load()) return PyErr_Format(PyExc_OSError, "this torch has no %s", missing);
  tensor_type_ = Py_NewRef(tensor), parameter_type_ = Py_NewRef(parameter);
  profiler_ = Py_NewRef(profiler), range_type_ = Py_NewRef(range);
  cdata_ = PyUnicode_InternFromString("_cdata");
  is_enabled_ = PyUnicode_InternFromString("_is_profiler_enabled");
  site_type_ = PyType_FromSpec(&site_spec);
  return cdata_ && is_enabled_ && site_type_ ? PyModule_Create(&module_) : nullptr;
}
