// The asynchronous transfer engine: one thread that copies units from their host copies to their
// device addresses, in the order in which they were asked for (one serial link).
//
// Life of a cycled unit, as the computing thread sees it:
//
//   set_slots ──> NOT_LANDED ──request──> FETCHING ──copied──> LANDED ──wait, compute, done──┐
//                      ^                      └──attempts used up──> FAILED                  │
//                      └──── the slot's next unit is requested ──────────────────────────────┘
//
// The units of a slot share its pages, so at most one of them is wanted there at any time: a
// request takes the slot from whichever unit had it, and is refused while a unit of the slot runs
// (between wait and done).  LANDED means wanted and copied, so no other copy into the slot is
// waiting or under way.  A resident unit is in no slot; once landed, it stays.
//
// Threads: wait() and done() are called by the computing thread, in order of execution; set_slots()
// and the other operations between steps, by any thread.  Nothing here takes Python's lock.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

namespace mirage {

// Python sees these two as mirage_core.errors.MisuseError and TransferError (bindings.cpp).

// The caller broke the contract above; nothing was changed.
struct Misuse : std::logic_error {
  using std::logic_error::logic_error;
};

// A unit's bytes could not be brought to the device as they are in the host copy.
struct TransferFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct UnitSpan {
  uint64_t device_address;
  uint64_t host_address;
  size_t size_bytes;
};

struct UnitStats {
  int64_t fetches;
  double transfer_last_s;  // of the last fetch: from when the link was free for it to its landing
  double transfer_mean_s;  // exponential average; 0 before the first fetch
  double queued_last_s;    // of the last fetch: from its request to the start of its copy
  double compute_last_s;   // from the end of wait() to done()
  double compute_mean_s;   // exponential average; 0 before the first run
};

struct EngineStats {
  int64_t fetches;
  int64_t fetched_bytes;
  double busy_s;  // the link's
  int64_t stalls;
  double stall_s;
  int64_t retries;
  int64_t failures;
  double step_compute_last_s;  // from the first unit's wait to the last unit's done, less stalls
  double step_compute_mean_s;
  std::vector<UnitStats> units;
};

class TransferEngine {
 public:
  struct Options {
    std::vector<int> cpus;  // the transfer thread runs on these; empty: wherever it may
    int nice;
    bool verify;   // compare the device's bytes with the checksum after every copy
    int attempts;  // copies of a unit before its fetch has failed
  };

  // Starts the transfer thread and makes this the process's engine (one model a process), also
  // when it is closed, until it is destroyed or a next one is made.
  explicit TransferEngine(Options options);
  ~TransferEngine();
  TransferEngine(const TransferEngine&) = delete;
  TransferEngine& operator=(const TransferEngine&) = delete;

  // The process's engine, or null while there is none.
  static TransferEngine* current();

  // The units in order of execution.  All are taken as landed and resident.
  void register_units(const std::vector<UnitSpan>& spans);
  // Which units cycle, through which slots (each in order of execution).  `landed` lists the units
  // whose bytes are at their device addresses now.  Each slot's first unit, and each resident unit,
  // is requested if it has not landed.
  void set_slots(
      const std::vector<std::vector<int64_t>>& slots, const std::unordered_set<int64_t>& landed);
  // Requests a unit, landed or not; returns at once.
  void fetch_now(int64_t unit);
  // Returns when nothing is requested and nothing is being copied.
  void drain();
  // Bytes per second of the link; 0: as fast as it copies.
  void set_bandwidth_limit(double bytes_per_s);
  // Units that are taken as landed but whose bytes on the device differ from the host copy's.
  // Call it between steps.
  std::vector<int64_t> mismatched_units();
  std::vector<int64_t> landed_units();
  EngineStats stats();
  // Ends the thread after the copy in progress; from then on a wait for a unit that has not landed
  // throws TransferFailed.
  void close();
  bool closed();

  // For tests of failure: the next `count` copies fail / have one byte flipped.
  void debug_fail_copies(int count);
  void debug_corrupt_copies(int count);

  // Before the unit's first linear: returns when its bytes have landed.
  void wait(int64_t unit);
  // After the unit's last linear: a cycled unit gives its slot to the slot's next unit.
  void done(int64_t unit);

 private:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  enum class State : uint8_t { kNotLanded, kFetching, kLanded, kFailed };

  struct Unit {
    UnitSpan span;
    uint64_t checksum;
    std::atomic<State> state{State::kLanded};
    int slot = -1;     // none
    int64_t next = -1;  // the slot's next unit in the circle of execution
    Time running_since;
    std::atomic<int64_t> fetches{0};
    std::atomic<double> transfer_last_s{0}, transfer_mean_s{0}, queued_last_s{0};
    std::atomic<double> compute_last_s{0}, compute_mean_s{0};
  };
  struct Slot {
    int64_t wanted = -1;   // whose bytes its pages hold, or will hold once the queue is empty
    int64_t running = -1;  // between wait and done
  };
  struct Request {
    int64_t unit;
    Time requested_at;
  };

  Unit& at(int64_t unit);
  void require_open() const;               // mutex held
  void request(int64_t unit);              // mutex held
  void require_not_running(const Unit&);   // mutex held
  void await_landing(int64_t unit);
  void run();
  void transfer(std::unique_lock<std::mutex>& lock, const Request& request);
  bool copy_and_check(const Unit& unit, bool corrupts);
  void place_thread();
  bool idle() const { return queue_.empty() && copying_ < 0; }  // mutex held

  const Options options_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<Slot> slots_;

  std::mutex mutex_;
  std::condition_variable requested_, landed_, idle_;
  std::deque<Request> queue_;
  int64_t copying_ = -1;  // the unit being copied
  bool stopping_ = false;
  double bytes_per_s_ = 0;
  Time link_free_at_;
  int fail_copies_ = 0;
  int corrupt_copies_ = 0;

  EngineStats totals_{};  // the link's side under the mutex; stalls and steps by the computing thread
  Time step_began_;
  double step_stall_s_ = 0;
  std::thread thread_;
};

}  // namespace mirage
