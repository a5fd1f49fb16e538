// The transfer engine for Python; the operators are in ops.cpp.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "checksum.h"
#include "panel_kernel.h"
#include "transfer_engine.h"

namespace py = pybind11;
using namespace mirage;

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  // torch's operators are pybind functions too, so what they throw is translated here as well.
  py::register_exception_translator([](std::exception_ptr thrown) {
    const auto raise = [](const char* name, const char* message) {
      PyErr_SetString(py::module_::import("mirage_core.errors").attr(name).ptr(), message);
    };
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const Misuse& error) {
      raise("MisuseError", error.what());
    } catch (const TransferFailed& error) {
      raise("TransferError", error.what());
    }
  });

  m.attr("PANEL_COLUMNS") = kPanelColumns;
  m.def("cpu_has_avx2_fma", &cpu_has_avx2_fma);
  m.def(
      "checksum",
      [](uint64_t address, size_t size_bytes) {
        return checksum(reinterpret_cast<const void*>(address), size_bytes);
      },
      py::arg("address"), py::arg("size_bytes"), py::call_guard<py::gil_scoped_release>());

  py::class_<UnitStats>(m, "UnitStats")
      .def_readonly("fetches", &UnitStats::fetches)
      .def_readonly("transfer_last_s", &UnitStats::transfer_last_s)
      .def_readonly("transfer_mean_s", &UnitStats::transfer_mean_s)
      .def_readonly("queued_last_s", &UnitStats::queued_last_s)
      .def_readonly("compute_last_s", &UnitStats::compute_last_s)
      .def_readonly("compute_mean_s", &UnitStats::compute_mean_s);
  py::class_<EngineStats>(m, "EngineStats")
      .def_readonly("fetches", &EngineStats::fetches)
      .def_readonly("fetched_bytes", &EngineStats::fetched_bytes)
      .def_readonly("busy_s", &EngineStats::busy_s)
      .def_readonly("stalls", &EngineStats::stalls)
      .def_readonly("stall_s", &EngineStats::stall_s)
      .def_readonly("retries", &EngineStats::retries)
      .def_readonly("failures", &EngineStats::failures)
      .def_readonly("step_compute_last_s", &EngineStats::step_compute_last_s)
      .def_readonly("step_compute_mean_s", &EngineStats::step_compute_mean_s)
      .def_readonly("units", &EngineStats::units);

  const py::call_guard<py::gil_scoped_release> unlocked;
  py::class_<TransferEngine>(m, "TransferEngine")
      .def(
          py::init([](std::vector<int> cpus, int nice, bool verify, int attempts) {
            return std::make_unique<TransferEngine>(
                TransferEngine::Options{std::move(cpus), nice, verify, attempts});
          }),
          py::kw_only(), py::arg("cpus"), py::arg("nice"), py::arg("verify"), py::arg("attempts"))
      .def(
          "register_units",
          [](TransferEngine& engine,
             const std::vector<std::tuple<uint64_t, uint64_t, size_t>>& units) {
            std::vector<UnitSpan> spans;
            for (const auto& [device, host, size] : units) spans.push_back({device, host, size});
            py::gil_scoped_release unlocked;
            engine.register_units(spans);
          },
          py::arg("units"))
      .def(
          "set_slots", &TransferEngine::set_slots, py::arg("slots"), py::arg("landed"), unlocked)
      .def("fetch_now", &TransferEngine::fetch_now, py::arg("unit"), unlocked)
      .def("wait", &TransferEngine::wait, py::arg("unit"), unlocked)
      .def("done", &TransferEngine::done, py::arg("unit"), unlocked)
      .def("drain", &TransferEngine::drain, unlocked)
      .def(
          "set_bandwidth_limit", &TransferEngine::set_bandwidth_limit, py::arg("bytes_per_s"),
          unlocked)
      .def("mismatched_units", &TransferEngine::mismatched_units, unlocked)
      .def("landed_units", &TransferEngine::landed_units, unlocked)
      .def("stats", &TransferEngine::stats, unlocked)
      .def("close", &TransferEngine::close, unlocked)
      .def("debug_fail_copies", &TransferEngine::debug_fail_copies, py::arg("count"), unlocked)
      .def(
          "debug_corrupt_copies", &TransferEngine::debug_corrupt_copies, py::arg("count"),
          unlocked);
}
