// For builds with ThreadSanitizer: the distribution's Abseil is not instrumented, so the sanitizer
// does not see what its mutex orders, and calls every use of one a race. These definitions stand in
// front of the library's, tell the sanitizer what is acquired and released, and call the library.
#include <dlfcn.h>

#include <string>
#include <typeinfo>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"

extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);

namespace {

// The library's own function, by its mangled name. The class brings the version namespace along.
template <typename Class>
void* Real(const char* rest) {
  std::string name = typeid(Class).name();  // N<namespaces and class>E
  name = "_Z" + name.substr(0, name.size() - 1) + rest;
  void* found = dlsym(RTLD_NEXT, name.c_str());
  if (found == nullptr) __builtin_trap();
  return found;
}

template <typename Function>
Function As(void* address) {
  return reinterpret_cast<Function>(address);
}

// Around a wait that gives the mutex up and has it again at the end.
struct GivenUp {
  explicit GivenUp(void* mutex) : mutex(mutex) { __tsan_release(mutex); }
  ~GivenUp() { __tsan_acquire(mutex); }
  void* mutex;
};

// The library evaluates a condition with the mutex held, but on any thread that lets go of it.
struct Watched {
  absl::Mutex* mutex;
  const absl::Condition* condition;

  bool Holds() const {
    __tsan_acquire(mutex);
    const bool holds = condition->Eval();
    __tsan_release(mutex);
    return holds;
  }
};

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static const auto real = As<void (*)(Mutex*)>(Real<Mutex>("4LockEv"));
  real(this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  static const auto real = As<void (*)(Mutex*)>(Real<Mutex>("6UnlockEv"));
  __tsan_release(this);
  real(this);
}

bool Mutex::TryLock() {
  static const auto real = As<bool (*)(Mutex*)>(Real<Mutex>("7TryLockEv"));
  const bool locked = real(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  static const auto real = As<void (*)(Mutex*)>(Real<Mutex>("10ReaderLockEv"));
  real(this);
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  static const auto real = As<void (*)(Mutex*)>(Real<Mutex>("12ReaderUnlockEv"));
  __tsan_release(this);
  real(this);
}

void Mutex::LockWhen(const Condition& condition) {
  Lock();
  Await(condition);
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, absl::Duration timeout) {
  Lock();
  return AwaitWithTimeout(condition, timeout);
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, absl::Time deadline) {
  Lock();
  return AwaitWithDeadline(condition, deadline);
}

void Mutex::Await(const Condition& condition) { AwaitWithDeadline(condition, InfiniteFuture()); }

bool Mutex::AwaitWithTimeout(const Condition& condition, absl::Duration timeout) {
  return AwaitWithDeadline(condition, Now() + timeout);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, absl::Time deadline) {
  static const auto real = As<bool (*)(Mutex*, const Condition&, absl::Time)>(
      Real<Mutex>("17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE"));
  const Watched watched{this, &condition};
  const Condition outer(&watched, &Watched::Holds);
  const GivenUp given_up(this);
  return real(this, outer, deadline);
}

void CondVar::Wait(Mutex* mutex) {
  static const auto real = As<void (*)(CondVar*, Mutex*)>(Real<CondVar>("4WaitEPNS0_5MutexE"));
  const GivenUp given_up(mutex);
  real(this, mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, absl::Duration timeout) {
  static const auto real = As<bool (*)(CondVar*, Mutex*, absl::Duration)>(
      Real<CondVar>("15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE"));
  const GivenUp given_up(mutex);
  return real(this, mutex, timeout);
}

bool CondVar::WaitWithDeadline(Mutex* mutex, absl::Time deadline) {
  static const auto real = As<bool (*)(CondVar*, Mutex*, absl::Time)>(
      Real<CondVar>("16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE"));
  const GivenUp given_up(mutex);
  return real(this, mutex, deadline);
}

ABSL_NAMESPACE_END
}  // namespace absl
