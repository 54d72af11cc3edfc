// The engine's interface for Python.
#include <cxxabi.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include "arena.h"
#include "engine.h"
#include "lent.h"
#include "openmp.h"
#include "operators.h"
#include "short_way.h"
#include "untouched.h"
#include "updates.h"

namespace py = pybind11;

namespace threadcast {
namespace {

// `given` is None (the schema's default), ("constant", object), ("value", number), ("number", number) for what the value
// holds when the operator is called, or ("values", [number or -1]).
Argument argument_of(const c10::FunctionSchema& schema, size_t position, const py::object& given) {
  const c10::Argument& declared = schema.arguments()[position];
  Argument argument;
  if (given.is_none()) {
    if (!declared.default_value()) throw std::invalid_argument(schema.name() + " needs " + declared.name());
    argument.constant = *declared.default_value();
    return argument;
  }
  const auto pair = given.cast<py::tuple>();
  const auto kind = pair[0].cast<std::string>();
  if (kind == "constant") {
    torch::jit::ToIValueAllowNumbersAsTensors numbers(true);
    argument.constant = torch::jit::argumentToIValue(schema, position, pair[1]);
    const bool number = argument.constant.isTensor() && !THPVariable_Check(pair[1].ptr());
    if (number) argument.constant.toTensor().unsafeGetTensorImpl()->set_wrapped_number(true);
  } else if (kind == "value") {
    argument.kind = Argument::Kind::kValue;
    argument.value = pair[1].cast<size_t>();
  } else if (kind == "number") {
    const bool tensor = declared.type()->isSubtypeOf(*c10::TensorType::get());
    argument.kind = tensor ? Argument::Kind::kWrapped : Argument::Kind::kNumber;
    argument.value = pair[1].cast<size_t>();
  } else {
    const bool optional = declared.type()->castRaw<c10::ListType>() != nullptr &&
                          declared.type()->castRaw<c10::ListType>()->getElementType()->kind() == c10::OptionalType::Kind;
    argument.kind = optional ? Argument::Kind::kOptionalTensors : Argument::Kind::kTensors;
    argument.values = pair[1].cast<std::vector<long>>();
  }
  return argument;
}

std::shared_ptr<Program> make_program(const py::list& calls, size_t values, std::vector<std::vector<int>> successors,
                                      std::vector<std::vector<int>> touches, bool grad) {
  auto program = std::make_shared<Program>();
  program->grad = grad;
  program->values = values;
  program->successors = std::move(successors);
  program->touches = std::move(touches);
  for (const auto& item : calls) {
    const auto call = item.cast<py::tuple>();
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(call[0].cast<std::string>().c_str(),
                                                                   call[1].cast<std::string>().c_str());
    Call made{op, {}, call[3].cast<size_t>(), call[4].cast<size_t>()};
    size_t position = 0;
    for (const auto& given : call[2].cast<py::list>())
      made.arguments.push_back(argument_of(op.schema(), position++, py::reinterpret_borrow<py::object>(given)));
    program->calls.push_back(std::move(made));
  }
  return program;
}

std::chrono::nanoseconds nanoseconds_of(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

Values values_of(const py::list& inputs) {
  Values values;
  for (const auto& input : inputs) {
    if (THPVariable_Check(input.ptr()))
      values.push_back(THPVariable_Unpack(input.ptr()));
    else if (PyLong_CheckExact(input.ptr()))
      values.push_back(input.cast<int64_t>());
    else
      values.push_back(c10::IValue());
  }
  return values;
}

// Lets other threads run Python meanwhile. As the interpreter exits, taking the lock again ends a daemon thread by
// unwinding it (pthread_exit), through frames that may not throw and drop objects without the lock. Such a thread waits
// here for the end of the process instead, as it does from Python 3.14 on.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {
      for (;;) pause();
    }
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

std::vector<py::object> run(Relay& relay, const py::list& inputs, const std::vector<size_t>& wanted,
                            std::optional<size_t> timed, py::list& ran_out) {
  Values values = values_of(inputs);
  std::vector<Ran> ran(timed.value_or(0));
  Values results;
  {
    Unlocked unlocked;
    results = relay.run(std::move(values), wanted, timed ? &ran : nullptr);
  }
  for (const Ran& one : ran) ran_out.append(py::make_tuple(one.start_s, one.finish_s, one.engine));
  std::vector<py::object> objects;
  for (c10::IValue& result : results) objects.push_back(torch::jit::toPyObject(std::move(result)));
  return objects;
}

// The tensors of a tuple or list; undefined ones for all other objects.
Tensors tensors_of(const py::sequence& objects) {
  Tensors tensors;
  tensors.reserve(objects.size());
  for (const auto& one : objects)
    tensors.push_back(THPVariable_Check(one.ptr()) ? THPVariable_Unpack(one.ptr()) : at::Tensor());
  return tensors;
}

// None for those that are undefined.
py::list objects_of(const Tensors& tensors) {
  py::list objects(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i)
    objects[i] = tensors[i].defined() ? py::reinterpret_steal<py::object>(THPVariable_Wrap(tensors[i])) : py::none();
  return objects;
}

py::tuple forward_pass(Relay& relay, const Forward& forward, const py::sequence& arguments) {
  const Tensors given = tensors_of(arguments);
  std::pair<Tensors, std::shared_ptr<Saved>> found;
  {
    Unlocked unlocked;
    found = run_forward(relay, forward, given);
  }
  return py::make_tuple(objects_of(found.first), std::move(found.second));
}

py::object backward_pass(Relay& relay, const Backward& backward, const std::shared_ptr<Saved>& saved,
                         const py::sequence& gradients, bool last) {
  const Tensors given = tensors_of(gradients);
  std::optional<Tensors> found;
  {
    Unlocked unlocked;
    found = run_backward(relay, backward, *saved, given, last);
  }
  return found ? py::object(objects_of(*found)) : py::none();
}

// Lets Python's garbage collector see, and cut, what objects of this class hold.
template <class Holder>
void collect_cycles_of(PyHeapTypeObject* type) {
  type->ht_type.tp_flags |= Py_TPFLAGS_HAVE_GC;
  type->ht_type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) -> int {
    Py_VISIT(Py_TYPE(self));
    return py::detail::is_holder_constructed(self) ? py::cast<Holder&>(py::handle(self)).visit(visit, arg) : 0;
  };
  type->ht_type.tp_clear = [](PyObject* self) -> int {
    if (py::detail::is_holder_constructed(self)) py::cast<Holder&>(py::handle(self)).clear();
    return 0;
  };
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("install_arena", &install_arena);
  module.def("trim_arena", &trim_arena);
  module.def("take_over_openmp", &take_over_openmp);
  module.def("set_home", &set_home);
  module.def("send_home", &send_home);
  module.def("is_pinned", &is_pinned);
  module.def("define_fused", [](const std::string& schema, const std::string& name, const std::string& path,
                                const std::string& symbol, std::vector<int64_t> sizes, size_t inputs,
                                std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> outputs) {
    define_fused(schema, name, path, symbol, {std::move(sizes), inputs, std::move(outputs)});
  }, py::kw_only(), py::arg("schema"), py::arg("name"), py::arg("path"), py::arg("symbol"), py::arg("sizes"),
      py::arg("inputs"), py::arg("outputs"));
  module.def("define_aggregation", &define_aggregation);
  module.def("define_products", &define_products);
  module.attr("tagged") = kTagged;
  py::class_<Untouched>(module, "Untouched", py::custom_type_setup(collect_cycles_of<Untouched>))
      .def(py::init<const std::vector<py::object>&, const std::vector<py::object>&, const std::vector<py::object>&>(),
           py::arg("tables"), py::arg("lists"), py::arg("tensors"))
      .def("holds", &Untouched::holds);
  module.def("set_threads", &omp_set_threads, py::arg("threads"));
  module.def("rest", [] { rest_lent(1); });
  module.def("in_step", [] { return omp_thread().ours; });
  module.def("accumulates_with_hooks", &accumulates_with_hooks, py::arg("tensor"));
  py::class_<Unassigned>(module, "Unassigned", py::custom_type_setup(collect_cycles_of<Unassigned>))
      .def(py::init<const std::vector<std::pair<py::object, std::string>>&>(), py::arg("attributes"))
      .def_property_readonly("rest", &Unassigned::rest)
      .def("holds", &Unassigned::holds);
  py::class_<Unwritten>(module, "Unwritten")
      .def(py::init<const std::vector<at::Tensor>&, const std::vector<std::vector<int64_t>>&>(), py::arg("tensors"),
           py::arg("offsets"))
      .def("holds", &Unwritten::holds);
  py::class_<Program, std::shared_ptr<Program>>(module, "Program")
      .def(py::init(&make_program), py::kw_only(), py::arg("calls"), py::arg("values"), py::arg("successors"),
           py::arg("touches"), py::arg("grad"));
  py::class_<Lanes, std::shared_ptr<Lanes>>(module, "Lanes")
      .def(py::init([](double spin_s) { return std::make_shared<Lanes>(nanoseconds_of(spin_s)); }))
      .def("lender", [](const std::shared_ptr<Lanes>& lanes, const std::vector<std::vector<int>>& cores) {
        return py::cpp_function([lanes, cores, homes_seen = homes(), forks_seen = forks()] {
          // Other homes may not have the cores; a forked process has no lanes.
          if (homes_seen == homes() && forks_seen == forks()) lend(lanes, cores);
        });
      }, py::arg("cores"));
  py::class_<Script, std::shared_ptr<Script>>(module, "Script")
      .def(py::init([](const std::vector<std::vector<std::pair<int, int>>>& lanes,
                       std::vector<std::vector<int>> teams, std::vector<int> waits, std::vector<std::vector<int>> tells,
                       std::vector<std::vector<int>> last, std::vector<std::vector<int>> counted,
                       std::vector<int> users) {
        auto script = std::make_shared<Script>(Script{{}, std::move(teams), std::move(waits), std::move(tells),
                                                      std::move(last), std::move(counted), std::move(users)});
        for (const auto& lane : lanes) {
          script->lanes.emplace_back();
          for (const auto& [op, rank] : lane) script->lanes.back().push_back({op, rank});
        }
        return script;
      }), py::kw_only(), py::arg("lanes"), py::arg("teams"), py::arg("waits"), py::arg("tells"),
          py::arg("last"), py::arg("counted"), py::arg("users"));
  py::class_<Engine, std::shared_ptr<Engine>>(module, "Engine")
      .def(py::init([](std::shared_ptr<Program> program, std::shared_ptr<Lanes> lanes, std::shared_ptr<Script> script,
                       const std::vector<Seat>& seats, std::vector<std::vector<int>> cores, double spin_s) {
        return std::make_shared<Engine>(program, lanes, std::move(script), seats, std::move(cores),
                                        nanoseconds_of(spin_s));
      }))
      .def_readwrite("number", &Engine::number);
  py::class_<Relay>(module, "Relay")
      .def(py::init<std::shared_ptr<Engine>>())
      .def("change", &Relay::change, py::call_guard<Unlocked>())
      .def("run", torch::wrap_pybind_function(run))
      .def("forward", torch::wrap_pybind_function(forward_pass))
      .def("backward", torch::wrap_pybind_function(backward_pass));
  py::class_<Looks>(module, "Looks")
      .def(py::init([](const py::sequence& examples) { return Looks(tensors_of(examples)); }))
      .def_static("of_update", [](const UpdateGroups& groups, const py::dict& state) -> std::optional<Looks> {
        const std::optional<UpdateTensors> tensors = tensors_of_update(groups, state);
        return tensors && tensors->apart() ? std::optional<Looks>(tensors->all) : std::nullopt;
      })
      .def("fit_update", [](const Looks& looks, const UpdateGroups& groups, const py::dict& state) {
        std::optional<UpdateTensors> tensors = tensors_of_update(groups, state);
        return tensors && looks.fit(tensors->all) && tensors->apart() ? std::move(tensors) : std::nullopt;
      });
  py::class_<UpdateTensors>(module, "UpdateTensors").def("count_writes", &UpdateTensors::count_writes);
  py::class_<Saved, std::shared_ptr<Saved>>(module, "Saved")
      .def_property_readonly("dropped", &Saved::dropped)
      .def("drop", [](Saved& saved) { saved.drop(); });
  py::class_<Forward>(module, "Forward")
      .def(py::init([](const Looks& looks, std::vector<size_t> written, size_t outputs, std::vector<size_t> wanted,
                       const py::list& others) {
        return Forward{looks, std::move(written), outputs, std::move(wanted), values_of(others)};
      }), py::kw_only(), py::arg("looks"), py::arg("written"), py::arg("outputs"), py::arg("wanted"),
          py::arg("others"))
      .def("fits", [](const Forward& forward, const py::sequence& arguments) {
        return forward.looks.fit(tensors_of(arguments));
      })
      .def("divided", torch::wrap_pybind_function([](const Forward& forward, const py::sequence& results,
                                                     const py::sequence& arguments) {
        auto [outputs, saved] = forward.divided(tensors_of(results), tensors_of(arguments));
        return py::make_tuple(objects_of(outputs), std::move(saved));
      }));
  py::class_<Backward>(module, "Backward")
      .def(py::init([](const Looks& looks, std::vector<size_t> gradients, std::vector<std::optional<size_t>> wanted,
                       const py::list& others, std::vector<size_t> apart) {
        return Backward{looks, std::move(gradients), std::move(wanted), values_of(others), std::move(apart)};
      }), py::kw_only(), py::arg("looks"), py::arg("gradients"), py::arg("wanted"), py::arg("others"),
          py::arg("apart"))
      .def("inputs", torch::wrap_pybind_function([](const Backward& backward, const std::shared_ptr<Saved>& saved,
                                                    const py::sequence& gradients) {
        return objects_of(backward.inputs(*saved, tensors_of(gradients)));
      }))
      .def("fits", [](const Backward& backward, const py::sequence& inputs) {
        return backward.looks.fit(tensors_of(inputs));
      });
}

}  // namespace threadcast
