#include "transfer_engine.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "checksum.h"
#include "copy.h"

namespace mirage {
namespace {

constexpr double kMeanWeight = 0.125;
constexpr std::chrono::microseconds kSpin{20};  // about what a sleep and a wake cost

std::atomic<TransferEngine*> process_engine{nullptr};

double seconds(std::chrono::steady_clock::duration span) {
  return std::chrono::duration<double>(span).count();
}

double mean_with(double mean, double sample) {
  return mean == 0 ? sample : mean + kMeanWeight * (sample - mean);
}

void record(std::atomic<double>& last, std::atomic<double>& mean, double sample) {
  last.store(sample, std::memory_order_relaxed);
  mean.store(
      mean_with(mean.load(std::memory_order_relaxed), sample), std::memory_order_relaxed);
}

std::string named(int64_t unit) { return "unit " + std::to_string(unit); }

}  // namespace

TransferEngine* TransferEngine::current() {
  return process_engine.load(std::memory_order_acquire);
}

TransferEngine::TransferEngine(Options options) : options_(std::move(options)) {
  if (options_.attempts < 1) throw Misuse("attempts must be 1 or more");
  TransferEngine* before = current();
  if (before != nullptr && !before->closed()) {
    throw Misuse("this process has a transfer engine already: close it first");
  }
  // Placing this thread before the other is used reports a refused CPU list to the caller.
  std::string refused;
  {
    std::unique_lock lock(mutex_);
    bool placed = false;
    thread_ = std::thread([this, &refused, &placed] {
      {
        std::lock_guard hold(mutex_);
        try {
          place_thread();
        } catch (const Misuse& error) {
          refused = error.what();
        }
        placed = true;
        idle_.notify_all();
      }
      run();
    });
    idle_.wait(lock, [&] { return placed; });
  }
  if (!refused.empty()) {
    close();
    throw Misuse(refused);
  }
  process_engine.store(this, std::memory_order_release);
}

TransferEngine::~TransferEngine() {
  close();
  TransferEngine* self = this;
  process_engine.compare_exchange_strong(self, nullptr);
}

bool TransferEngine::closed() {
  std::lock_guard lock(mutex_);
  return stopping_;
}

void TransferEngine::close() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  requested_.notify_all();
  landed_.notify_all();
  idle_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void TransferEngine::place_thread() {
  prctl(PR_SET_TIMERSLACK, 1000);  // ns: a limited link lands on time
  prctl(PR_SET_NAME, "mirage-transfer");
  if (!options_.cpus.empty()) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int cpu : options_.cpus) {
      if (cpu < 0 || cpu >= CPU_SETSIZE) throw Misuse("no such CPU: " + std::to_string(cpu));
      CPU_SET(cpu, &set);
    }
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
      throw Misuse(std::string("the transfer thread's CPUs were refused: ") + strerror(errno));
    }
  }
  if (options_.nice != 0 &&
      setpriority(PRIO_PROCESS, id_t(syscall(SYS_gettid)), options_.nice) != 0) {
    throw Misuse(std::string("the transfer thread's nice value was refused: ") + strerror(errno));
  }
}

TransferEngine::Unit& TransferEngine::at(int64_t unit) {
  if (unit < 0 || unit >= int64_t(units_.size())) {
    throw Misuse(
        named(unit) + " is not registered: there are " + std::to_string(units_.size()) + " units");
  }
  return *units_[size_t(unit)];
}

void TransferEngine::require_open() const {
  if (stopping_) throw Misuse("the transfer engine is closed");
}

void TransferEngine::register_units(const std::vector<UnitSpan>& spans) {
  std::vector<std::unique_ptr<Unit>> units;
  for (const UnitSpan& span : spans) {
    if (span.device_address == 0 || span.host_address == 0 || span.size_bytes == 0) {
      throw Misuse(named(int64_t(units.size())) + " has no address or no size");
    }
    auto& unit = units.emplace_back(std::make_unique<Unit>());
    unit->span = span;
    unit->checksum =
        checksum(reinterpret_cast<const void*>(span.host_address), span.size_bytes);
  }
  std::lock_guard lock(mutex_);
  require_open();
  if (!idle()) throw Misuse("units registered while a fetch is under way: drain first");
  units_ = std::move(units);
  slots_.clear();
}

void TransferEngine::set_slots(
    const std::vector<std::vector<int64_t>>& slots, const std::unordered_set<int64_t>& landed) {
  std::lock_guard lock(mutex_);
  require_open();
  if (!idle()) throw Misuse("slots set while a fetch is under way: drain first");
  std::vector<int> slot_of(units_.size(), -1);
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    const auto& members = slots[slot];
    if (members.size() < 2) throw Misuse("a slot needs two or more units");
    int64_t landed_members = 0;
    for (size_t i = 0; i < members.size(); ++i) {
      at(members[i]);
      if (i > 0 && members[i] <= members[i - 1]) throw Misuse("a slot's units must ascend");
      if (slot_of[size_t(members[i])] >= 0) throw Misuse(named(members[i]) + " is in two slots");
      slot_of[size_t(members[i])] = int(slot);
      landed_members += int64_t(landed.count(members[i]));
    }
    if (landed_members > 1) throw Misuse("two units of one slot cannot both have landed");
  }
  for (int64_t unit : landed) at(unit);

  slots_.assign(slots.size(), Slot{});
  for (size_t u = 0; u < units_.size(); ++u) {
    Unit& unit = *units_[u];
    unit.slot = slot_of[u];
    unit.next = -1;
    unit.state = landed.count(int64_t(u)) != 0 ? State::kLanded : State::kNotLanded;
  }
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    const auto& members = slots[slot];
    for (size_t i = 0; i < members.size(); ++i) {
      Unit& unit = at(members[i]);
      unit.next = members[(i + 1) % members.size()];
      if (unit.state == State::kLanded) slots_[slot].wanted = members[i];
    }
  }
  for (size_t u = 0; u < units_.size(); ++u) {
    const int slot = slot_of[u];
    const bool runs_first_of_slot = slot >= 0 && slots[size_t(slot)].front() == int64_t(u);
    if ((slot < 0 || runs_first_of_slot) && units_[u]->state == State::kNotLanded) {
      request(int64_t(u));
    }
  }
}

void TransferEngine::fetch_now(int64_t unit) {
  std::lock_guard lock(mutex_);
  require_open();
  require_not_running(at(unit));
  request(unit);
}

void TransferEngine::require_not_running(const Unit& unit) {
  if (unit.slot < 0) return;
  const int64_t running = slots_[size_t(unit.slot)].running;
  if (running >= 0) throw Misuse(named(running) + " still runs in the slot that a fetch needs");
}

void TransferEngine::request(int64_t unit) {
  Unit& wanted = at(unit);
  if (wanted.slot >= 0) {
    Slot& slot = slots_[size_t(wanted.slot)];
    if (slot.wanted >= 0 && slot.wanted != unit) {
      // Its bytes would be overwritten: a copy that waits is dropped, one under way will not land.
      std::erase_if(queue_, [&](const Request& r) { return r.unit == slot.wanted; });
      at(slot.wanted).state = State::kNotLanded;
    }
    slot.wanted = unit;
  }
  if (wanted.state == State::kFetching) return;
  wanted.state = State::kFetching;
  if (copying_ == unit) return;
  queue_.push_back({unit, Clock::now()});
  requested_.notify_one();
}

void TransferEngine::drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return stopping_ || idle(); });
}

void TransferEngine::set_bandwidth_limit(double bytes_per_s) {
  if (!(bytes_per_s >= 0)) throw Misuse("a bandwidth limit is 0 (none) or more bytes per second");
  std::lock_guard lock(mutex_);
  bytes_per_s_ = bytes_per_s;
}

std::vector<int64_t> TransferEngine::landed_units() {
  std::lock_guard lock(mutex_);
  std::vector<int64_t> landed;
  for (size_t u = 0; u < units_.size(); ++u) {
    if (units_[u]->state == State::kLanded) landed.push_back(int64_t(u));
  }
  return landed;
}

std::vector<int64_t> TransferEngine::mismatched_units() {
  std::vector<int64_t> mismatched;
  for (int64_t u : landed_units()) {
    const Unit& unit = at(u);
    const auto* device = reinterpret_cast<const void*>(unit.span.device_address);
    if (checksum(device, unit.span.size_bytes) != unit.checksum) mismatched.push_back(u);
  }
  return mismatched;
}

void TransferEngine::debug_fail_copies(int count) {
  std::lock_guard lock(mutex_);
  fail_copies_ = count;
}

void TransferEngine::debug_corrupt_copies(int count) {
  std::lock_guard lock(mutex_);
  corrupt_copies_ = count;
}

EngineStats TransferEngine::stats() {
  std::lock_guard lock(mutex_);
  EngineStats stats = totals_;
  for (const auto& unit : units_) {
    stats.units.push_back(
        {unit->fetches, unit->transfer_last_s, unit->transfer_mean_s, unit->queued_last_s,
         unit->compute_last_s, unit->compute_mean_s});
  }
  return stats;
}

void TransferEngine::wait(int64_t unit) {
  Unit& wanted = at(unit);
  if (wanted.state.load(std::memory_order_acquire) != State::kLanded) await_landing(unit);
  if (wanted.slot >= 0) {
    std::lock_guard lock(mutex_);
    slots_[size_t(wanted.slot)].running = unit;
  }
  wanted.running_since = Clock::now();
  if (unit == 0) {
    step_began_ = wanted.running_since;
    step_stall_s_ = 0;
  }
}

void TransferEngine::await_landing(int64_t unit) {
  Unit& wanted = at(unit);
  const Time began = Clock::now();
  while (wanted.state.load(std::memory_order_acquire) == State::kFetching &&
         Clock::now() - began < kSpin) {
    __builtin_ia32_pause();
  }
  std::unique_lock lock(mutex_);
  while (wanted.state == State::kFetching || wanted.state == State::kNotLanded) {
    if (stopping_) break;
    if (wanted.state == State::kNotLanded) {
      // Nobody asked for it: the last step was broken off, or units run out of order.
      require_not_running(wanted);
      request(unit);
    }
    landed_.wait(lock);
  }
  const double stall_s = seconds(Clock::now() - began);
  totals_.stalls += 1;
  totals_.stall_s += stall_s;
  step_stall_s_ += stall_s;
  if (wanted.state == State::kLanded) return;
  throw TransferFailed(
      named(unit) + " cannot be fetched: " +
      (wanted.state == State::kFailed
           ? "none of " + std::to_string(options_.attempts) + " copies matches the host copy"
           : "the transfer engine was closed"));
}

void TransferEngine::done(int64_t unit) {
  Unit& ran = at(unit);
  const Time now = Clock::now();
  record(ran.compute_last_s, ran.compute_mean_s, seconds(now - ran.running_since));
  const bool ends_step = unit + 1 == int64_t(units_.size());
  if (ran.slot < 0 && !ends_step) return;
  std::lock_guard lock(mutex_);
  if (ends_step) {
    totals_.step_compute_last_s = seconds(now - step_began_) - step_stall_s_;
    totals_.step_compute_mean_s =
        mean_with(totals_.step_compute_mean_s, totals_.step_compute_last_s);
  }
  if (ran.slot < 0) return;
  int64_t& running = slots_[size_t(ran.slot)].running;
  if (running != unit) throw Misuse(named(unit) + " is done, but it had not begun");
  running = -1;
  ran.state = State::kNotLanded;
  request(ran.next);
}

void TransferEngine::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    requested_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    const Request request = queue_.front();
    queue_.pop_front();
    copying_ = request.unit;
    transfer(lock, request);
    copying_ = -1;
    landed_.notify_all();
    if (queue_.empty()) idle_.notify_all();
  }
}

void TransferEngine::transfer(std::unique_lock<std::mutex>& lock, const Request& request) {
  Unit& unit = at(request.unit);
  unit.queued_last_s = seconds(Clock::now() - request.requested_at);
  bool copied = false;
  for (int attempt = 0; attempt < options_.attempts && !copied; ++attempt) {
    if (attempt > 0) ++totals_.retries;
    const bool fails = fail_copies_ > 0 && fail_copies_-- > 0;
    const bool corrupts = corrupt_copies_ > 0 && corrupt_copies_-- > 0;
    lock.unlock();
    copied = !fails && copy_and_check(unit, corrupts);
    lock.lock();
  }

  // The link's own time: a fetch begins when it was asked for or when the link became free, not
  // when this thread woke, so that late wakes do not add up.
  const Time begin = std::max(request.requested_at, link_free_at_);
  Time lands_at = Clock::now();
  if (bytes_per_s_ > 0) {
    const std::chrono::duration<double> least(double(unit.span.size_bytes) / bytes_per_s_);
    lands_at = std::max(lands_at, begin + std::chrono::ceil<Clock::duration>(least));
    while (!stopping_ && Clock::now() < lands_at) requested_.wait_until(lock, lands_at);
  }
  link_free_at_ = lands_at;
  const double transfer_s = seconds(lands_at - begin);
  totals_.busy_s += transfer_s;
  if (copied) {
    ++unit.fetches;
    ++totals_.fetches;
    totals_.fetched_bytes += int64_t(unit.span.size_bytes);
    record(unit.transfer_last_s, unit.transfer_mean_s, transfer_s);
  } else {
    ++totals_.failures;
  }
  const bool wanted = unit.slot < 0 || slots_[size_t(unit.slot)].wanted == request.unit;
  unit.state.store(
      !wanted ? State::kNotLanded : copied ? State::kLanded : State::kFailed,
      std::memory_order_release);
}

bool TransferEngine::copy_and_check(const Unit& unit, bool corrupts) {
  auto* device = reinterpret_cast<void*>(unit.span.device_address);
  copy_to_device(
      device, reinterpret_cast<const void*>(unit.span.host_address), unit.span.size_bytes);
  if (corrupts) static_cast<uint8_t*>(device)[unit.span.size_bytes / 2] ^= 0xff;
  return !options_.verify || checksum(device, unit.span.size_bytes) == unit.checksum;
}

}  // namespace mirage
